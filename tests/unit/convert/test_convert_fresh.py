"""Untrained models under any scheme: the same function as kilolayer's own layers, the same Python class."""

import copy
import pickle
import re

import pytest
import torch
from torch import nn

from kilolayer import nn as kn
from kilolayer.convert import Refusal, apply_conversion, audit, plan_conversion
from kilolayer.convert.audit_init import measured_gain
from kilolayer.convert.auditing import Audit
from kilolayer.convert.planning import read_branches
from kilolayer.convert.verify import largest_difference, run_once
from kilolayer.schemes import SCHEMES, get_scheme

WIDTH, LAYERS = 16, 3
X = (torch.randn(2, 5, WIDTH, generator=torch.Generator().manual_seed(0)),)
SUPPORTED = [scheme.name for scheme in SCHEMES if scheme.name != "sub-ln"]


def torch_encoder(*, norm_first, layers=LAYERS):
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.2, batch_first=True, norm_first=norm_first)
    norm = nn.LayerNorm(WIDTH) if norm_first else None
    return nn.TransformerEncoder(layer, layers, norm, enable_nested_tensor=False)


def convert_only(model, scheme, **options):
    return apply_conversion(model, plan_conversion(model, scheme, fresh=True, **options)).plan


def convert(model, scheme, **options):
    torch.manual_seed(0)
    convert_only(model, scheme, **options)
    with torch.no_grad():  # norms, biases and trained scales that are no identities
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def own_name(name):
    """The name in kilolayer.nn of a parameter in a converted encoder of torch.nn."""
    name = re.sub(rf"layers\.{LAYERS - 1}\.norm2\.kilolayer_final_norm", "norm", name)
    name = re.sub(r"norm(\d)\.kilolayer_(\w+)_norm", r"\2_norm\1", name)
    return re.sub(r"dropout(\d)\.kilolayer_(branch|skip)_scale\d+", r"\2_scale\1", name)


@pytest.mark.parametrize("norm_first", [False, True], ids=["from post-norm", "from pre-norm"])
@pytest.mark.parametrize("scheme", SUPPORTED)
def test_it_computes_what_kilolayers_own_layers_compute(scheme, norm_first):
    torch.manual_seed(0)
    model = torch_encoder(norm_first=norm_first).eval()
    plan = convert_only(model, scheme)
    with torch.no_grad():  # norms, biases and trained scales that are no identities
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    template = kn.TransformerEncoderLayer(WIDTH, 2, 32, batch_first=True, scheme=plan.scheme)
    has_final = any(own_name(name).startswith("norm.") for name, _ in model.named_parameters())
    ours = kn.TransformerEncoder(template, LAYERS, nn.LayerNorm(WIDTH) if has_final else None).eval()
    assert has_final == (ours.layers[0].place.scheme.final_norm)
    values = {own_name(name): value.detach() for name, value in model.named_parameters()}
    if scheme == "rezero":  # one scale per layer there, held by the layer's first branch here
        values = {re.sub(r"branch_scale1$", "branch_scale", name): value for name, value in values.items()}
    parameters = dict(ours.named_parameters())
    assert set(values) == set(parameters)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(values[name])
    difference = largest_difference([run_once(ours, X)], [run_once(model, X)])
    # Where torch.nn's own norm stands behind a divided sum, its eps is meant for that.
    assert difference < (1e-4 if scheme in ("deepnorm", "keel") and not norm_first else 1e-5)


def test_a_norm_has_no_place_where_code_reads_the_last_matrix_itself():
    model = torch_encoder(norm_first=False)
    with pytest.raises(ValueError, match=r"not called as a module.*; build the model with kilolayer\.nn"):
        convert_only(model, "sub-ln")
    assert type(model.layers[0].norm1) is nn.LayerNorm


@pytest.mark.parametrize("norm_first", [False, True], ids=["from post-norm", "from pre-norm"])
def test_admins_skip_scales_are_those_of_a_profile_of_the_same_network(norm_first):
    torch.manual_seed(0)
    model = torch_encoder(norm_first=norm_first, layers=12)
    state, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    plan = plan_conversion(model, "admin", fresh=True)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert type(model.layers[0].dropout1) is nn.Dropout
    template = kn.TransformerEncoderLayer(WIDTH, 2, 32, batch_first=True, scheme="post-ln")
    profile = kn.profile_branches(kn.TransformerEncoder(template, 12), *X)
    wanted = get_scheme("admin").with_profile(profile)
    for index, change in enumerate(plan.changes):
        assert change.new_skip_scale == pytest.approx(wanted.at(plan.depth, index).skip_scale, rel=0.25)
    apply_conversion(model, plan)
    learned = [value for name, value in model.named_parameters() if "kilolayer_skip_scale" in name]
    assert [one[0].item() for one in learned] == pytest.approx([change.new_skip_scale for change in plan.changes])


class Model(nn.Module):
    """Layers between embeddings and a head that nothing names."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, WIDTH)
        self.encoder = torch_encoder(norm_first=True)

    def forward(self, tokens):
        return self.encoder(self.embedding(tokens))


@pytest.mark.parametrize("scheme", ["fixup", "t-fixup"])
def test_embeddings_that_nothing_names_are_not_guessed(scheme):
    with pytest.raises(Refusal, match=r"embedding\.weight of this Model is one of them is not known"):
        plan_conversion(Model(), scheme, fresh=True, inputs=(torch.arange(4)[None],))
    notes = plan_conversion(torch_encoder(norm_first=True), scheme, fresh=True).notes
    assert any("yours" in note for note in notes)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("scheme", ["deepnorm", "sandwich-ln", "layerscale", "post-ln", "pre-ln"])
def test_it_trains_copies_and_pickles(scheme, norm_first):
    torch.manual_seed(0)
    model = torch_encoder(norm_first=norm_first)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    apply_conversion(model, plan_conversion(model, scheme, fresh=True), optimizer=optimizer)
    held = {id(one) for group in optimizer.param_groups for one in group["params"]}
    assert held == {id(one) for one in model.parameters()}
    model.train()
    for _ in range(2):
        optimizer.zero_grad()
        (model(*X) * torch.linspace(-1, 1, WIDTH)).mean().backward()
        assert [name for name, one in model.named_parameters() if one.grad is None] == []
        optimizer.step()
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert isinstance(again, nn.TransformerEncoder)
        assert largest_difference([run_once(model, X)], [run_once(again, X)]) == 0
        (again(*X) * torch.linspace(-1, 1, WIDTH)).mean().backward()


def test_the_initial_values_are_the_schemes():
    torch.manual_seed(0)
    model = torch_encoder(norm_first=False, layers=6)
    plan = plan_conversion(model, "deepnorm", fresh=True)
    assert "layers.0.self_attn.in_proj_weight[32:48]" in plan.render()
    apply_conversion(model, plan)
    for branch in read_branches(model, None).branches:
        for matrix in branch.matrices:
            wanted = plan.scheme.at(plan.depth, branch.branch_index).gain(matrix.role)
            found, error = measured_gain(model, matrix)
            assert abs(found - wanted) < 5 * error * wanted + 0.03
    found = audit(model)
    assert isinstance(found, Audit)
    assert found.faults == ()
    assert not torch.equal(model.layers[0].linear1.weight, model.layers[1].linear1.weight)


def test_deepnorm_from_pre_norm_takes_the_final_norm_out():
    model = torch_encoder(norm_first=True)
    plan = plan_conversion(model, "deepnorm", fresh=True)
    assert any("norm: taken out; deepnorm has no final norm" in note for note in plan.notes)
    apply_conversion(model, plan)
    assert not [name for name, _ in model.named_parameters() if name.startswith("norm.")]
    assert "norm.weight" not in plan.names


def test_a_state_dict_fits_only_the_same_wiring():
    model, plain = torch_encoder(norm_first=True), torch_encoder(norm_first=True)
    convert(model, "deepnorm")
    again = torch_encoder(norm_first=True)
    convert(again, "deepnorm")
    again.load_state_dict(model.state_dict())
    assert largest_difference([run_once(model, X)], [run_once(again, X)]) == 0
    with pytest.raises(RuntimeError, match="size mismatch"):
        plain.load_state_dict(model.state_dict(), strict=False)


def test_kilolayers_own_are_built_under_their_scheme():
    model = kn.TransformerEncoder(kn.TransformerEncoderLayer(WIDTH, 2, 32), 2)
    with pytest.raises(Refusal, match="build it again with scheme="):
        plan_conversion(model, "sandwich-ln", fresh=True)


def test_a_branch_inside_the_code_of_the_sum_has_no_place_for_a_wiring():
    class Inline(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.norm = nn.Parameter(torch.randn(WIDTH, WIDTH)), nn.LayerNorm(WIDTH)

        def forward(self, x):
            return x + self.norm(x) @ self.weight

    with pytest.raises(Refusal, match="starts or ends in the code of the sum"):
        plan_conversion(nn.Sequential(Inline(), Inline()), "deepnorm", inputs=X, fresh=True)


def test_a_failure_puts_the_model_back(monkeypatch):
    model = torch_encoder(norm_first=True)
    before, names = run_once(model, X), [name for name, _ in model.named_parameters()]
    monkeypatch.setattr("kilolayer.convert.fresh.check_scheme", lambda *args: 1.0)
    with pytest.raises(Refusal, match="computes another stream than deepnorm"):
        apply_conversion(model, plan_conversion(model, "deepnorm", fresh=True))
    assert [name for name, _ in model.named_parameters()] == names
    assert type(model.layers[0].norm1) is nn.LayerNorm
    assert largest_difference([before], [run_once(model, X)]) == 0


def test_a_wiring_whose_output_does_not_reach_the_sum_is_seen():
    """The code scales what the branch's module returns: the reading sees that, and nothing is rewired."""

    class Halved(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.inner = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            return x + 0.5 * self.inner(self.norm(x))

    with pytest.raises(Refusal, match="has scales of its own; start from a plain model"):
        plan_conversion(nn.Sequential(Halved(), Halved()), "deepnorm", inputs=X, fresh=True)
