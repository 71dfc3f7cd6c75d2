import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kilolayer.monitor import Monitor, describe_sites
from kilolayer.nn import build_deep_mlp
from kilolayer.recording import Recording

SCHEMES = ["plain", "norm-only", "residual", "post-ln", "pre-ln", "deepnorm"]


def model_and_data(scheme="pre-ln", norm="layer", dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    model = build_deep_mlp(
        in_features=6, num_classes=4, width=8, num_blocks=3, scheme=scheme, norm=norm, generator=generator
    ).to(dtype)
    x = torch.randn(10, 6, generator=generator, dtype=dtype)
    return model, x, torch.arange(10) % 4


def train(model, x, y, *, num_steps=12, monitor_options=None, optimizer=None):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    if monitor_options is None:
        for _ in range(num_steps):
            losses.append(one_step(model, optimizer, x, y))
        return losses, None
    with Monitor(model, optimizer, **monitor_options) as monitor:
        for _ in range(num_steps):
            losses.append(one_step(model, optimizer, x, y, monitor))
    return losses, monitor.recording


def one_step(model, optimizer, x, y, monitor=None):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    if monitor is not None:
        monitor.log(loss=loss)
    optimizer.step()
    return loss.item()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("stats", ["core", "full"])
def test_statistics_equal_a_hand_instrumented_step(scheme, stats):
    model, x, y = model_and_data(scheme, dtype=torch.float64)
    twin = copy.deepcopy(model)
    _, recording = train(model, x, y, num_steps=1, monitor_options={"every": 1, "stats": stats})

    kept = {}

    def keep(name, tensor):
        tensor.retain_grad()
        kept[name] = tensor

    h = twin.input_projection(x)
    keep("input_projection:out", h)
    for index, block in enumerate(twin.blocks):
        path = f"blocks.{index}"
        if hasattr(block, "linear"):
            h = block.linear(h)
            keep(f"{path}.linear:out", h)
            if block.norm is not None:
                h = block.norm(h)
                keep(f"{path}.norm:out", h)
            h = torch.relu(h)
            continue
        branch_out = block.branch(h if block.pre_norm is None else block.pre_norm(h))
        keep(f"{path}.branch:out", branch_out)
        h = block.skip_scale * h + branch_out
        if block.post_norm is None:
            keep(f"{path}:sum", h)
        else:
            keep(f"{path}.post_norm:in", h)
            h = block.post_norm(h)
            keep(f"{path}.post_norm:out", h)
    if twin.final_norm is not None:
        h = twin.final_norm(h)
        keep("final_norm:out", h)
    out = twin.head(h)
    keep("head:out", out)
    F.cross_entropy(out, y).backward()

    core = [s.name for s in recording.sites if s.stream or (s.block_index is None and s.name in kept)]
    for name in core if stats == "core" else kept:
        tensor = kept[name]
        wanted = {"rms": tensor.square().mean().sqrt()}
        if stats == "full":
            unit = tensor / tensor.norm(dim=1, keepdim=True)
            cosines = unit @ unit.T
            wanted |= {
                "std": tensor.std(correction=0),
                "max_abs": tensor.abs().max(),
                "zero_fraction": (tensor == 0).double().mean(),
                "sample_cosine": (cosines.sum() - 10) / 90,
            }
        for stat, value in wanted.items():
            found = recording.series(name, "activation", stat)[1]
            assert found == pytest.approx([value.item()], rel=1e-5, abs=1e-7), (name, stat)
        found = recording.series(name, "activation_grad", "rms")[1]
        assert found == pytest.approx([tensor.grad.square().mean().sqrt().item()], rel=1e-5), name

    for name, parameter in twin.named_parameters():
        if parameter.dim() < 2:
            continue
        size, grad = parameter.norm().item(), parameter.grad.norm().item()
        assert recording.series(name, "param", "l2_norm")[1] == pytest.approx([size], rel=1e-5)
        assert recording.series(name, "param_grad", "l2_norm")[1] == pytest.approx([grad], rel=1e-5)
        assert recording.series(name, "update", "l2_norm")[1] == pytest.approx([0.1 * grad], rel=1e-5)
        assert recording.series(name, "update", "update_ratio")[1] == pytest.approx([0.1 * grad / size], rel=1e-5)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("norm", ["layer", "batch"])
@pytest.mark.parametrize("every", [1, 5])
def test_training_is_bit_identical_with_and_without(scheme, norm, every):
    model, x, y = model_and_data(scheme, norm)
    twin = copy.deepcopy(model)
    torch.manual_seed(0)
    with_monitor, _ = train(model, x, y, monitor_options={"every": every})
    torch.manual_seed(0)
    without, _ = train(twin, x, y)
    assert with_monitor == without
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), twin.state_dict().values(), strict=True))


def hooks(model, optimizer):
    return [
        len(getattr(owner, name))
        for owner, names in (
            *((m, ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")) for m in model.modules()),
            (optimizer, ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")),
        )
        for name in names
    ]


def test_nothing_is_left_behind_even_after_an_exception(tmp_path):
    model, x, y = model_and_data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attributes = {name: set(vars(module)) for name, module in model.named_modules()}
    before = hooks(model, optimizer)
    with pytest.raises(RuntimeError, match="mine"), Monitor(model, optimizer, every=1, out=tmp_path / "r") as monitor:
        one_step(model, optimizer, x, y, monitor)
        raise RuntimeError("mine")
    assert hooks(model, optimizer) == before
    assert {name: set(vars(module)) for name, module in model.named_modules()} == attributes
    assert Recording.load(tmp_path / "r").has("activation", "rms")


def test_between_sampled_steps_no_module_hook_is_there():
    model, x, y = model_and_data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Monitor(model, optimizer, every=3) as monitor:
        for step in range(7):
            assert any(m._forward_hooks for m in model.modules()) == (step % 3 == 0)
            one_step(model, optimizer, x, y, monitor)
    assert monitor.recording.steps("activation", "rms").tolist() == [0, 3, 6]
    assert monitor.recording.steps("update", "update_ratio").tolist() == [0, 3, 6]
    assert monitor.recording.steps("run", "loss").tolist() == list(range(7))


def test_every_may_be_a_function():
    model, x, y = model_and_data()
    _, recording = train(model, x, y, monitor_options={"every": lambda step: step in (0, 1, 7)})
    assert recording.steps("activation", "rms").tolist() == [0, 1, 7]


def test_updates_are_what_the_optimizer_did_not_what_the_gradient_says():
    model, x, y = model_and_data()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.5)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    _, recording = train(model, x, y, num_steps=1, monitor_options={"every": 1}, optimizer=optimizer)
    for name, parameter in model.named_parameters():
        if parameter.dim() >= 2:
            wanted = ((parameter - before[name]).norm() / before[name].norm()).item()
            assert recording.series(name, "update", "update_ratio")[1] == pytest.approx([wanted], rel=1e-5)


def test_evaluation_inside_a_step_is_not_recorded():
    model, x, y = model_and_data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Monitor(model, optimizer, every=1) as monitor:
        with torch.no_grad():
            model(100 * x)
        one_step(model, optimizer, x, y, monitor)
    _, values = monitor.recording.series("input_projection:in", "activation", "rms")
    assert values == pytest.approx([x.square().mean().sqrt().item()], rel=1e-6)


def test_overflow_of_squares_is_not_mistaken_for_a_non_finite_value():
    model = nn.Linear(2, 2)
    with Monitor(model, every=1) as monitor:
        model(torch.full((3, 2), 1e30)).sum().backward()
        monitor.end_step()
    assert monitor.recording.series(":in", "activation", "rms")[1] == pytest.approx([1e30], rel=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_non_finite_entries_show(bad):
    model = nn.Sequential(nn.Linear(2, 2))
    x = torch.ones(3, 2)
    x[1, 1] = bad
    with Monitor(model, every=1) as monitor:
        model(x).sum().backward()
        monitor.end_step()
    assert not math.isfinite(monitor.recording.series("0:in", "activation", "rms")[1][0])


def test_frozen_weights_and_integer_inputs():
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 2))
    model[0].weight.requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    with Monitor(model, optimizer, every=1) as monitor:
        model(torch.tensor([1, 2])).sum().backward()
        optimizer.step()
    assert monitor.recording.series("0.weight", "update", "update_ratio")[1].tolist() == [0.0]
    assert monitor.recording.series("0.weight", "param_grad", "l2_norm")[1].tolist() == []
    assert monitor.recording.series("0:in", "activation", "rms")[1].tolist() == []


def test_facts_name_optimizer_and_groups():
    model, x, y = model_and_data()
    _, recording = train(model, x, y, num_steps=1, monitor_options={})
    assert recording.facts["optimizer"] == "SGD"
    assert recording.facts["param_groups"][0]["lr"] == 0.1
    assert recording.facts["num_parameters"] == sum(p.numel() for p in model.parameters())


def test_sites_say_what_the_blocks_are():
    model, x, _ = model_and_data("deepnorm")
    sites = {site.name: site for site in describe_sites(model, x)}
    top = sites["blocks.1.post_norm:out"]
    assert (top.block_index, top.branch_index, top.stream, top.norm_placement) == (1, 1, True, "post")
    assert top.skip_scale == pytest.approx(3**0.25)
    assert sites["blocks.1.branch.linear2.weight"].block_index == 1
    assert sites["head.weight"].block_index is None
    orders = [site.order for site in describe_sites(model, x)]
    assert orders == sorted(set(orders))


def test_bad_input():
    with pytest.raises(ValueError, match="ReLU has no parameters"):
        Monitor(nn.ReLU())
    with pytest.raises(ValueError, match="every must be >= 1, got 0"):
        Monitor(nn.Linear(1, 1), every=0)
    with pytest.raises(ValueError, match="stats 'all' is unknown"):
        Monitor(nn.Linear(1, 1), stats="all")


def test_a_resumed_run_goes_on_counting():
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = Monitor(model, optimizer, every=4).start(step=6)
    for _ in range(4):
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    recording = monitor.close()
    assert recording.steps("run", "grad_norm").tolist() == [6, 7, 8, 9]
    assert recording.steps("activation", "rms").tolist() == [8]


def test_listeners_get_the_rows_of_sampled_steps_as_recorded():
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    heard = {}
    with Monitor(model, optimizer, every=2) as monitor:
        monitor.subscribe(lambda step, rows: heard.update({step: dict(rows)}))
        for _ in range(3):
            model(torch.ones(2, 3)).sum().backward()
            monitor.log(loss=1.5)
            optimizer.step()
        names = {site.name for site in monitor.sites()}
    frame = monitor.recording.to_pandas()
    assert heard.keys() == {0, 2}
    for step, rows in heard.items():
        recorded = frame[frame.step == step]
        keys = list(zip(recorded.site, recorded.role, recorded.stat, strict=True))
        assert rows.keys() == set(keys)
        assert [rows[key] for key in keys] == pytest.approx(recorded.value.tolist(), rel=1e-6, nan_ok=True)
        assert {site for site, _, _ in rows} - {"run"} <= names


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_a_part_that_takes_no_hooks_is_left_out_and_named():
    model = nn.Sequential(torch.jit.script(nn.Linear(4, 4)), nn.Tanh(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = Monitor(model, optimizer, every=1)
    with pytest.warns(UserWarning, match="could not read"):
        monitor.start()
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    monitor.close()
    assert "0:out" in monitor.recording.facts["missing"]
    assert "1:out" in monitor.recording.site_names("activation", "rms")


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_a_model_that_takes_no_hooks_is_refused():
    with pytest.raises(ValueError, match="before torch.jit.script"):
        Monitor(torch.jit.script(nn.Linear(2, 2)))
