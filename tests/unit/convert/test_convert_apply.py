"""Applying a plan: outputs kept in every dtype, the model otherwise as found, and put back when anything fails."""

import copy

import pytest
import torch
from torch import nn

from kilolayer import nn as kn
from kilolayer.convert import Refusal, apply_conversion, audit, plan_conversion, redepth
from kilolayer.convert.verify import largest_difference, run_once

X = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))


def encoder(layers=2, **options):
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **options), layers)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def state_of(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(one, other):
    return set(one) == set(other) and all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize(
    ("dtype", "within"), [(torch.float32, 1e-5), (torch.float64, 1e-12), (torch.bfloat16, 0.15), (torch.float16, 0.02)]
)
def test_outputs_stay_in_the_models_own_dtype(dtype, within):
    model, x = encoder().to(dtype), X.to(dtype)
    before = run_once(model, x)
    done = apply_conversion(model, plan_conversion(model, "deepnorm"))
    assert done.tolerance == within
    assert done.max_difference <= within
    assert largest_difference([before], [run_once(model, x)]) <= within
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}


@pytest.mark.parametrize("scheme", ["deepnorm", "post-ln"])
def test_kilolayers_own_models_can_be_built_again(scheme):
    other = "post-ln" if scheme == "deepnorm" else "deepnorm"
    config = kn.TransformerConfig(
        vocab_size=20,
        width=16,
        num_heads=4,
        num_kv_heads=2,
        decoder_layers=3,
        activation="swiglu",
        norm="rms",
        scheme=other,
    )
    model, tokens = kn.CausalLM(config), (torch.arange(7)[None],)
    before = run_once(model, tokens)
    apply_conversion(model, plan_conversion(model, scheme))
    assert model.config.scheme == scheme
    again = kn.CausalLM(model.config)
    again.load_state_dict(model.state_dict())
    assert largest_difference([run_once(model, tokens)], [run_once(again, tokens)]) == 0
    assert largest_difference([before], [run_once(model, tokens)]) <= 1e-5


@pytest.mark.parametrize("library", [nn, kn])
def test_one_depths_skip_scale_becomes_anothers(library):
    torch.manual_seed(0)
    model = library.TransformerEncoder(library.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
    before = run_once(model, X)
    for depth, skip_scale in ((12, 24**0.25), (50, 100**0.25), (2, 4**0.25)):
        done = apply_conversion(model, plan_conversion(model, "deepnorm", depth=depth))
        assert {change.new_skip_scale for change in done.plan.changes} == {skip_scale}
        assert largest_difference([before], [run_once(model, X)]) <= 1e-5


def test_torchs_weights_come_through_kilolayer_to_the_bit():
    model = encoder()
    ours = kn.TransformerEncoder(kn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
    ours.load_state_dict(model.state_dict())
    back = encoder()
    back.load_state_dict(ours.state_dict())
    assert same(back.state_dict(), model.state_dict())


def test_what_torch_saved_becomes_ours_with_a_skip_scale_of_its_own():
    model = encoder()
    ours = kn.TransformerEncoder(kn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
    ours.load_state_dict(model.state_dict())
    apply_conversion(ours, plan_conversion(ours, "deepnorm"))
    assert ours.layers[0].scales[0].skip_scale == 4**0.25
    assert ours.depth_guard.num_layers.tolist() == [2, 0]
    assert largest_difference([run_once(model, X)], [run_once(ours, X)]) <= 1e-5
    with pytest.raises(ValueError, match="does not say which depth its skip scales come from"):
        ours.load_state_dict(model.state_dict(), strict=False)


def test_a_stack_inside_another_model():
    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.encoder, self.head = nn.Embedding(9, 8), encoder(), nn.Linear(8, 2)

        def forward(self, tokens):
            return {"logits": self.head(self.encoder(self.embedding(tokens)).mean(dim=1))}

    model, tokens = Classifier(), (torch.arange(9)[None],)
    before = run_once(model, tokens)
    done = apply_conversion(model, plan_conversion(model, "deepnorm", inputs=tokens))
    assert done.names == {name: name for name, _ in model.named_parameters()}
    assert largest_difference([before], [run_once(model, tokens)]) <= 1e-5


def test_the_model_is_otherwise_left_as_found():
    model = encoder().train()
    model.layers[0].eval()
    model.layers[1].linear1.weight.requires_grad_(False)
    parameters = dict(model.named_parameters())
    random_state = torch.get_rng_state()
    apply_conversion(model, plan_conversion(model, "deepnorm"))
    assert torch.equal(torch.get_rng_state(), random_state)
    assert model.training
    assert not model.layers[0].training
    assert not model.layers[1].linear1.weight.requires_grad
    assert all(parameter is parameters[name] for name, parameter in model.named_parameters())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("kind", ["torch", "own"])
@pytest.mark.parametrize("failure", ["outputs", "error"])
def test_a_failure_puts_the_model_back_to_the_bit(monkeypatch, kind, failure):
    if kind == "torch":
        model = encoder()
    else:
        model = kn.TransformerEncoder(kn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
    before, state, classes = run_once(model, X), state_of(model), [type(module) for module in model.modules()]
    plan = plan_conversion(model, "deepnorm")

    from kilolayer.convert import apply as room

    change = room.change_in_place

    def spoil(model, plan):
        change(model, plan)
        if failure == "error":
            raise RuntimeError("out of memory")
        with torch.no_grad():
            model.layers[0].linear2.weight.mul_(1.01)

    monkeypatch.setattr(room, "change_in_place", spoil)
    expected = (RuntimeError, "out of memory") if failure == "error" else (Refusal, "it was put back")
    with pytest.raises(expected[0], match=expected[1]):
        apply_conversion(model, plan)
    assert same(model.state_dict(), state)
    assert [type(module) for module in model.modules()] == classes
    assert largest_difference([before], [run_once(model, X)]) == 0


def test_a_plan_is_applied_once():
    model = encoder()
    plan = plan_conversion(model, "deepnorm")
    apply_conversion(model, plan)
    state = state_of(model)
    with pytest.raises(ValueError, match="this TransformerEncoder was converted since the plan was made; plan it anew"):
        apply_conversion(model, plan)
    assert same(model.state_dict(), state)


@pytest.mark.parametrize("first", ["deepnorm", "pre-ln", "rezero"])
@pytest.mark.parametrize("fresh", [True, False], ids=["fresh", "trained"])
def test_a_plan_from_before_another_conversion(first, fresh):
    model = encoder()
    plan = plan_conversion(model, "deepnorm", rule="three-l", fresh=fresh)
    apply_conversion(model, plan_conversion(model, first, fresh=True))
    state = state_of(model)
    with pytest.raises(ValueError, match="was converted since the plan was made"):
        apply_conversion(model, plan)
    assert same(model.state_dict(), state)


@pytest.mark.parametrize("scheme", ["deepnorm", "pre-ln"])
@pytest.mark.parametrize("change", ["deeper", "wider", "shallower"])
def test_a_plan_for_another_size_of_the_same_class(change, scheme):
    options = {"deeper": (4, 16), "wider": (3, 24), "shallower": (2, 16)}

    def build(layers, hidden):
        return nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, hidden, batch_first=True), layers)

    plan = plan_conversion(build(3, 16), scheme, fresh=scheme == "pre-ln")
    with pytest.raises(ValueError, match=r"made for another TransformerEncoder: layers\..*; plan this model anew"):
        apply_conversion(build(*options[change]), plan)


@pytest.mark.parametrize("do", [
    lambda model: apply_conversion(model, plan_conversion(model, "deepnorm")),
    lambda model: apply_conversion(model, plan_conversion(model, "pre-ln", fresh=True)),
    lambda model: redepth(model, 4),
    audit,
], ids=["convert", "fresh", "redepth", "audit"])  # fmt: skip
def test_a_model_without_values(do):
    with pytest.raises(ValueError, match=r"layers\.0\..* is on the meta device and has no values"):
        do(encoder().to("meta"))


def test_a_model_whose_outputs_are_no_numbers_verifies_nothing():
    model = encoder()
    with torch.no_grad():
        model.layers[0].linear1.weight[0, 0] = float("nan")
    for do in (lambda: apply_conversion(model, plan_conversion(model, "deepnorm")), lambda: redepth(model, 4)):
        with pytest.raises(ValueError, match="returns no finite number before anything was changed"):
            do()


@pytest.mark.parametrize(("given", "error", "message"), [
    (3, TypeError, "optimizer must be a torch.optim.Optimizer or several in a list, got int"),
    ("foreign", ValueError, "trains none of this model's parameters"),
], ids=["no optimizer", "foreign"])  # fmt: skip
def test_an_optimizer_that_does_not_fit_is_refused_before_anything_changes(given, error, message):
    model = encoder()
    state = state_of(model)
    optimizer = torch.optim.SGD(encoder().parameters(), lr=0.1) if given == "foreign" else given
    for fresh in (False, True):
        plan = plan_conversion(model, "deepnorm", fresh=fresh)
        with pytest.raises(error, match=message):
            apply_conversion(model, plan, optimizer=optimizer)
    with pytest.raises(error, match=message):
        redepth(model, 4, optimizer=optimizer)
    assert same(model.state_dict(), state)
    assert type(model.layers[0].linear2) is nn.Linear


def test_two_optimizers_go_on_as_one_would():
    results = []
    for split in (False, True):
        model = encoder(dropout=0.0)
        halves = [layer.parameters() for layer in model.layers] if split else [model.parameters()]
        optimizers = [torch.optim.AdamW(half, lr=1e-3) for half in halves]
        for _ in range(2):
            model(X).pow(2).mean().backward()
            for optimizer in optimizers:
                optimizer.step()
            given = optimizers if split else optimizers[0]
            if not hasattr(model.layers[0].linear2, "branch_scale"):
                apply_conversion(model, plan_conversion(model, "deepnorm"), optimizer=given)
        redepth(model, 3, optimizer=given)
        results.append(state_of(model))
        trained = [one for optimizer in optimizers for group in optimizer.param_groups for one in group["params"]]
        assert {id(one) for one in trained} == {id(one) for one in model.parameters()}
    assert same(*results)


def test_autocast_around_a_conversion_does_not_blur_what_is_verified():
    model = encoder()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        done = apply_conversion(model, plan_conversion(model, "deepnorm"))
    assert done.tolerance == 1e-5


def test_a_plan_for_another_model():
    plan = plan_conversion(encoder(3), "deepnorm")
    with pytest.raises(ValueError, match=r"layers\.2\.linear1\.bias is missing here"):
        apply_conversion(encoder(2), plan)
    with pytest.raises(ValueError, match="a TransformerEncoder, this is a Sequential"):
        apply_conversion(nn.Sequential(nn.Linear(2, 2)), plan)
    with pytest.raises(TypeError, match="plan must be a ConversionPlan, got str"):
        apply_conversion(encoder(2), "deepnorm")


def train(model, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        (model(X) * torch.linspace(0, 1, 8)).sum().backward()
        optimizer.step()


@pytest.mark.parametrize(
    "build",
    [lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9), lambda p: torch.optim.AdamW(p, lr=1e-3, amsgrad=True)],
)
def test_what_an_optimizer_remembers_follows_the_scale(build):
    model = encoder().eval()
    optimizer = build(model.parameters())
    train(model, optimizer, 3)
    before = copy.deepcopy(optimizer.state_dict()["state"])
    apply_conversion(model, plan_conversion(model, "deepnorm"), optimizer=optimizer)
    weights = [parameter for name, parameter in model.named_parameters() if name.endswith("linear2.weight")]
    order = {id(one): index for index, one in enumerate(optimizer.param_groups[0]["params"])}
    powers = {"momentum_buffer": 1, "exp_avg": 1, "exp_avg_sq": 2, "max_exp_avg_sq": 2}
    for weight in weights:
        for name, value in before[order[id(weight)]].items():
            if name in powers:
                torch.testing.assert_close(optimizer.state[weight][name], value / 4 ** (0.25 * powers[name]))
    untouched = model.layers[0].linear1.weight
    for name, value in before[order[id(untouched)]].items():
        assert torch.equal(torch.as_tensor(optimizer.state[untouched][name]), torch.as_tensor(value))
    train(model, optimizer, 1)


def test_the_gradient_is_as_the_rescaled_state_says():
    model = encoder().eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    train(model, optimizer, 1)
    apply_conversion(model, plan_conversion(model, "deepnorm"), optimizer=optimizer)
    model.zero_grad()
    (model(X) * torch.linspace(0, 1, 8)).sum().backward()
    weight = model.layers[1].linear2.weight
    torch.testing.assert_close(optimizer.state[weight]["momentum_buffer"], weight.grad, rtol=1e-3, atol=1e-5)


def test_an_optimizer_of_another_model_is_refused():
    other = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    with pytest.raises(ValueError, match="trains none of this model's parameters"):
        apply_conversion(encoder(), plan_conversion(encoder(), "deepnorm"), optimizer=other)


@pytest.fixture
def one_process(tmp_path):
    distributed = torch.distributed
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def test_a_sharded_model_is_refused(one_process):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = encoder()
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    for change in (lambda: plan_conversion(model, "deepnorm"), lambda: redepth(model, 4), lambda: audit(model)):
        with pytest.raises(Refusal, match="is sharded; change the model before it is sharded"):
            change()


def test_a_wrapped_model_is_converted_where_it_is_and_changed_in_size_only_inside(one_process):
    wrapped = nn.parallel.DistributedDataParallel(encoder())
    done = apply_conversion(wrapped, plan_conversion(wrapped, "deepnorm"))
    assert done.max_difference <= 1e-5
    wrapped(X).pow(2).mean().backward()
    assert all(parameter.grad is not None for parameter in wrapped.parameters())
    again = nn.parallel.DistributedDataParallel(encoder())
    for change in (
        lambda: apply_conversion(again, plan_conversion(again, "rezero", fresh=True)),
        lambda: redepth(again, 4),
    ):
        with pytest.raises(ValueError, match=r"change the model inside, its \.module, and wrap that anew"):
            change()
    assert len(again.module.layers) == 2
