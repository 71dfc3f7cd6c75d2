"""Plans say every change; what cannot be kept is refused with the reason."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kilolayer import nn as kn
from kilolayer.convert import Refusal, apply_conversion, plan_conversion
from kilolayer.schemes import Depth, coefficients, get_scheme

X = (torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0)),)


def encoder(layers=6, **options):
    return nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **options), layers, enable_nested_tensor=False
    )


class Block(nn.Module):
    def __init__(self, skip_scale=1.0):
        super().__init__()
        self.inner, self.norm, self.skip_scale = nn.Linear(8, 8), nn.LayerNorm(8), skip_scale

    def branch(self, x):
        return self.inner(F.relu(x))

    def forward(self, x):
        return self.norm(self.skip_scale * x + self.branch(x))


def stack(kind=Block, layers=3, **options):
    return nn.Sequential(*(kind(**options) for _ in range(layers)))


def test_one_stack_has_its_coefficients():
    plan = plan_conversion(encoder(), "deepnorm")
    assert {change.new_skip_scale for change in plan.changes} == {coefficients(encoder_layers=6).encoder.skip_scale}
    assert [change.layers for change in plan.changes] == [(index // 2,) for index in range(12)]
    assert plan.depth == Depth(encoder_layers=6)
    assert plan.keeps_function


@pytest.mark.parametrize("library", [nn, kn])
def test_both_stacks_have_theirs(library):
    model = library.Transformer(8, 2, 6, 6, 16, batch_first=True)
    plan = plan_conversion(model, "deepnorm")
    scales = {
        stack: {one.new_skip_scale for one in plan.changes if one.stack == stack} for stack in ("encoder", "decoder")
    }
    both = coefficients(encoder_layers=6, decoder_layers=6)
    assert scales == {"encoder": {both.encoder.skip_scale}, "decoder": {both.decoder.skip_scale}}
    assert len(plan.changes) == 12 + 18


def test_every_rule_and_another_depth():
    model = encoder(2)
    for rule in ("deepnet", "glm130b", "three-l"):
        wanted = get_scheme("deepnorm", rule=rule).at(Depth(encoder_layers=9), 0).skip_scale
        plan = plan_conversion(model, "deepnorm", rule=rule, depth=9)
        assert {change.new_skip_scale for change in plan.changes} == {wanted}
        assert plan == plan_conversion(model, get_scheme("deepnorm", rule=rule), depth=Depth(encoder_layers=9))


def test_the_text_says_every_change():
    lines = plan_conversion(encoder(8), "deepnorm").render().splitlines()
    assert lines[0] == "TransformerEncoder to deepnorm (deepnet): 16 residual branches, outputs kept"
    assert lines[1] == (
        "  layers.0 [encoder layer 1]; norm post; skip scale 1 -> 2; layers.0.norm1 eps 1e-05; "
        "layers.0.self_attn.out_proj.weight, layers.0.self_attn.out_proj.bias times 2; "
        "output of layers.0.self_attn times 0.5"
    )
    assert len([line for line in lines if line.startswith("  layers.")]) == 16
    assert any(line.startswith("note: each branch's output is divided by the skip scale") for line in lines)


def test_kilolayers_own_take_the_scale_itself_and_another_eps():
    model = kn.TransformerEncoder(kn.TransformerEncoderLayer(8, 2, 16), 8)
    plan = plan_conversion(model, "deepnorm")
    assert plan.form == "kilolayer"
    assert plan.changes[0].new_eps == pytest.approx(4e-5)
    assert plan.changes[0].carrier is None


def test_a_plan_changes_nothing():
    model = encoder(2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    plan_conversion(model, "deepnorm")
    plan_conversion(model, "sandwich-ln", fresh=True)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert type(model.layers[0].linear2) is nn.Linear


@pytest.mark.parametrize(
    ("build", "scheme", "message"),
    [
        (lambda: encoder(2, norm_first=True), "deepnorm", r"pre-norm: behind its sum stands no norm"),
        (lambda: encoder(2), "pre-ln", r"no way to 'pre-ln' that keeps its outputs"),
        (lambda: encoder(2), "keel", r"no way to 'keel'"),
        (lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU()), "deepnorm", r"has no residual sum"),
    ],
    ids=["pre-norm", "to pre-norm", "to keel", "no skip"],
)
def test_what_would_change_the_outputs_is_refused(build, scheme, message):
    with pytest.raises(Refusal, match=message):
        plan_conversion(build(), scheme, inputs=X)


class Inline(Block):
    def forward(self, x):
        return self.norm(x + F.linear(F.relu(x), self.inner.weight))


class Ends(Block):
    def branch(self, x):
        return F.relu(self.inner(x))


class Trained(Block):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(8))

    def branch(self, x):
        return self.gain * self.inner(x)


class Shared(Block):
    def branch(self, x):
        return self.inner(F.relu(self.inner(x)))


class Shifted(Block):
    def branch(self, x):
        return self.inner(x) + torch.ones(8)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Inline, r"put the branch's last matrix into a module of its own"),
        (Ends, r"does not end in a matrix: relu stands behind it"),
        (Trained, r"has a trained scale"),
        (Shared, r"inner\.weight is used elsewhere too"),
        (Shifted, r"something that is no parameter is added behind the last matrix"),
    ],
)
def test_a_branch_whose_end_cannot_be_scaled(kind, message):
    with pytest.raises(Refusal, match=message):
        plan_conversion(stack(kind), "deepnorm", inputs=X)


def test_tied_matrices_are_refused():
    model = stack()
    model[1].inner.weight = model[0].inner.weight
    with pytest.raises(Refusal, match=r"is used elsewhere too|tied to another"):
        plan_conversion(model, "deepnorm", inputs=X)


def test_a_scale_in_the_code_is_corrected_by_a_factor_but_never_made_plain():
    model = stack(skip_scale=5.0)
    plan = plan_conversion(model, "deepnorm", inputs=X)
    assert {change.old_skip_scale for change in plan.changes} == {5.0}
    done = apply_conversion(model, plan)
    assert done.max_difference <= 1e-5
    assert plan_conversion(model, "deepnorm", rule="glm130b", inputs=X).changes[0].old_skip_scale == pytest.approx(
        3**0.25
    )
    with pytest.raises(Refusal, match="no weights make it a plain post-LN"):
        plan_conversion(model, "post-ln", inputs=X)


def test_nothing_to_convert_is_said():
    with pytest.raises(ValueError, match="computes post-ln with these skip scales already"):
        plan_conversion(encoder(2), "post-ln")


def test_a_rewired_model_is_not_converted_twice():
    model = encoder(2)
    apply_conversion(model, plan_conversion(model, "sandwich-ln", fresh=True))
    with pytest.raises(Refusal, match="was rewired to another scheme already"):
        plan_conversion(model, "deepnorm")


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (("model", "deepnorm"), {}, TypeError, r"model must be a torch\.nn\.Module, got str"),
        ((encoder(1), "deepnrm"), {}, ValueError, r"did you mean 'deepnorm'"),
        ((encoder(1), "deepnorm"), {"rule": "glm"}, ValueError, r"did you mean 'glm130b'"),
        ((encoder(3), "deepnorm"), {"depth": 2}, ValueError, r"depth 2 is less than the 3 encoder layers"),
        ((stack(), "deepnorm"), {}, ValueError, r"nothing says what Sequential takes; pass inputs="),
    ],
    ids=["no model", "scheme", "rule", "depth", "inputs"],
)
def test_mistakes(arguments, options, error, message):
    with pytest.raises(error, match=message):
        plan_conversion(*arguments, **options)
