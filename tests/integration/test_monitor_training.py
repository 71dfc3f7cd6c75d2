"""The monitor in the loops people write: accumulation, scalers, closures, compilers, several processes."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from kilolayer.monitor import Monitor
from kilolayer.recording import Recording


def build(seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 3))
    return model, torch.randn(12, 6), torch.randn(12, 3)


def mse(model, x, y):
    return (model(x) - y).square().mean()


def one_step(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = mse(model, x, y)
    loss.backward()
    optimizer.step()
    return loss.item()


def values(recording, site, role, stat):
    return recording.series(site, role, stat)[1]


def grad_norm(module):
    return math.sqrt(sum(p.grad.double().square().sum().item() for p in module.parameters() if p.grad is not None))


def rms(x):
    return x.double().square().mean().sqrt().item()


# ---------------------------------------------------------------------- optimizers
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd foreach": lambda p: torch.optim.SGD(p, lr=0.1, foreach=True),
    "sgd fused": lambda p: torch.optim.SGD(p, lr=0.1, fused=True),
    "sgd maximize": lambda p: torch.optim.SGD(p, lr=0.1, maximize=True),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "adamw foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "tensor lr": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01)),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_of_every_optimizer_are_what_happened(name):
    model, x, y = build()
    optimizer = OPTIMIZERS[name](model.parameters())
    moves = []
    with Monitor(model, optimizer, every=1) as monitor:
        for _ in range(3):
            before = {path: p.detach().clone() for path, p in model.named_parameters()}
            one_step(model, optimizer, x, y)
            moves.append({path: (p - before[path]).norm().item() for path, p in model.named_parameters()})
    for path, _ in model.named_parameters():
        wanted = [move[path] for move in moves]
        assert values(monitor.recording, path, "update", "l2_norm") == pytest.approx(wanted, rel=1e-3, abs=1e-7), path


def test_groups_have_a_learning_rate_each_and_schedulers_show():
    model, x, y = build()
    groups = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2:].parameters(), "lr": 0.01}]
    optimizer = torch.optim.SGD(groups)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    grads = []
    with Monitor(model, optimizer, every=1) as monitor:
        for _ in range(2):
            one_step(model, optimizer, x, y)
            grads.append([model[0].weight.grad.norm().item(), model[4].weight.grad.norm().item()])
            scheduler.step()
    recording = monitor.recording
    assert values(recording, "run", "run", "lr") == pytest.approx([0.1, 0.05])
    assert values(recording, "run", "run", "lr_1") == pytest.approx([0.01, 0.005])
    assert values(recording, "0.weight", "update", "l2_norm") == pytest.approx([0.1 * grads[0][0], 0.05 * grads[1][0]])
    assert values(recording, "4.weight", "update", "l2_norm") == pytest.approx(
        [0.01 * grads[0][1], 0.005 * grads[1][1]]
    )


def test_frozen_parameters_and_those_without_an_optimizer_do_not_move():
    model, x, y = build()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model[4].parameters(), lr=0.1)
    with Monitor(model, optimizer, every=1) as monitor:
        one_step(model, optimizer, x, y)
    recording = monitor.recording
    assert values(recording, "0.weight", "update", "update_ratio").tolist() == [0.0]
    assert not len(values(recording, "0.weight", "param_grad", "l2_norm"))
    assert values(recording, "2.weight", "update", "update_ratio").tolist() == [0.0]
    assert values(recording, "2.weight", "param_grad", "l2_norm") > 0
    assert values(recording, "4.weight", "update", "update_ratio") > 0


def test_layers_added_on_the_way_are_read_from_then_on():
    model, x, y = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Monitor(model, optimizer, every=1) as monitor:
        one_step(model, optimizer, x, y)
        model.append(nn.Linear(3, 3))
        optimizer.add_param_group({"params": model[5].parameters()})
        one_step(model, optimizer, x, y)
        one_step(model, optimizer, x, y)
    steps = monitor.recording.series("5.weight", "update", "update_ratio")[0]
    # The step in whose course the layer came was begun without it.
    assert steps.tolist() == [2]
    assert monitor.recording.series("5:out", "activation", "rms")[0].tolist() == [2]
    assert monitor.recording.series("4:out", "activation", "rms")[0].tolist() == [0, 1, 2]
    assert monitor.recording.site("5.weight").shape == (3, 3)


@pytest.mark.parametrize("make", [lambda p: torch.optim.LBFGS(p, max_iter=4), lambda p: torch.optim.SGD(p, lr=0.1)])
def test_a_closure_runs_inside_the_step_and_the_numbers_are_still_right(make):
    model, x, y = build()
    twin = copy.deepcopy(model)

    def run(model, monitored):
        optimizer = make(model.parameters())

        def closure():
            optimizer.zero_grad()
            loss = mse(model, x, y)
            loss.backward()
            return loss

        if not monitored:
            return [optimizer.step(closure).item() for _ in range(2)], None
        with Monitor(model, optimizer, every=1) as monitor:
            return [optimizer.step(closure).item() for _ in range(2)], monitor

    before = twin[0].weight.detach().clone()
    losses, monitor = run(model, True)
    bare_losses, _ = run(twin, False)
    assert losses == bare_losses
    recording = monitor.close()
    assert recording.steps("update", "l2_norm").tolist() == [0, 1]
    assert values(recording, "0.weight", "param", "l2_norm")[0] == pytest.approx(before.norm().item())
    assert values(recording, "0.weight", "param_grad", "l2_norm")[1] == pytest.approx(twin[0].weight.grad.norm().item())
    assert values(recording, "run", "run", "grad_norm")[1] == pytest.approx(grad_norm(twin))
    assert len(values(recording, "0:out", "activation", "rms")) == 2


def test_sparse_gradients():
    torch.manual_seed(0)
    model = nn.Embedding(9, 4, sparse=True)
    optimizer = torch.optim.SparseAdam(model.parameters(), lr=0.1)
    with Monitor(model, optimizer, every=1) as monitor:
        model(torch.tensor([1, 1, 3])).square().sum().backward()
        optimizer.step()
    assert values(monitor.recording, "weight", "param_grad", "l2_norm") == pytest.approx(
        [model.weight.grad.to_dense().norm().item()], rel=1e-5
    )


def test_an_optimizer_in_a_wrapper_is_found():
    class Wrapped:
        def __init__(self, optimizer):
            self.optimizer = optimizer

    model, x, y = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Monitor(model, Wrapped(optimizer), every=1) as monitor:
        one_step(model, optimizer, x, y)
    assert monitor.recording.has("update", "update_ratio")
    with pytest.raises(TypeError, match=r"got dict; .* end_step"):
        Monitor(model, {})


# ---------------------------------------------------------------------- steps
def test_accumulated_micro_batches_are_one_step():
    model, x, y = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    twin = copy.deepcopy(model)
    parts = list(zip(x.split(4), y.split(4), strict=True))
    with Monitor(model, optimizer, every=1) as monitor:
        for _ in range(2):
            optimizer.zero_grad()
            for part in parts:
                (mse(model, *part) / len(parts)).backward()
            wanted = grad_norm(model)
            optimizer.step()
    recording = monitor.recording
    assert recording.steps("param_grad", "l2_norm").tolist() == [0, 1]
    assert values(recording, "run", "run", "grad_norm")[1] == pytest.approx(wanted)
    # The last micro-batch is the one that is read.
    assert values(recording, "0:out", "activation", "rms")[0] == pytest.approx(rms(twin[0](parts[-1][0])), rel=1e-5)


def test_gradient_norms_are_there_for_every_step_whatever_is_sampled():
    model, x, y = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    wanted = []
    with Monitor(model, optimizer, every=4) as monitor:
        for _ in range(6):
            one_step(model, optimizer, x, y)
            wanted.append((model[2].weight.grad.norm().item(), grad_norm(model)))
    recording = monitor.recording
    assert recording.steps("activation", "rms").tolist() == [0, 4]
    assert recording.steps("update", "update_ratio").tolist() == [0, 4]
    assert values(recording, "2.weight", "param_grad", "l2_norm") == pytest.approx([w for w, _ in wanted])
    assert values(recording, "run", "run", "grad_norm") == pytest.approx([g for _, g in wanted])
    assert recording.series("2.bias", "param_grad", "l2_norm")[0].tolist() == [0, 4]


@pytest.mark.parametrize("under", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_evaluation_between_backward_and_step_is_not_read(under):
    model, x, y = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Monitor(model, optimizer, every=1) as monitor:
        loss = mse(model, x, y)
        loss.backward()
        with under():
            model(100 * x)
        optimizer.step()
    assert values(monitor.recording, "0:in", "activation", "rms") == pytest.approx([rms(x)], rel=1e-5)


def test_parts_called_on_their_own_are_read():
    model, x, y = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Monitor(model, optimizer, every=1) as monitor:
        for _ in range(2):
            optimizer.zero_grad()
            (model[2:](model[:2](x)) - y).square().mean().backward()
            optimizer.step()
    assert monitor.recording.series("2:out", "activation_grad", "rms")[0].tolist() == [0, 1]


def test_a_model_that_is_never_called_is_told():
    model, x, y = build()
    twin = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Monitor(model, optimizer, every=1):
        mse(twin, x, y).backward()
        with pytest.warns(UserWarning, match="Sequential was not called with gradients"):
            optimizer.step()


def test_an_exception_in_mid_step_leaves_what_was_seen(tmp_path):
    model, x, y = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(RuntimeError, match="mine"), Monitor(model, optimizer, every=1, out=tmp_path / "r") as monitor:
        one_step(model, optimizer, x, y)
        monitor.log(loss=mse(model, x, y))
        raise RuntimeError("mine")
    recording = Recording.load(tmp_path / "r")
    assert recording.steps("activation", "rms").tolist() == [0, 1]
    assert recording.steps("run", "loss").tolist() == [1]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_an_exception_in_the_forward_pass_does_not_mix_passes():
    model, x, y = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Monitor(model, optimizer, every=1) as monitor:
        with pytest.raises(RuntimeError, match="shapes"):
            model(torch.ones(3, 5))
        with torch.no_grad():
            model(100 * x)
        one_step(model, optimizer, x, y)
    assert values(monitor.recording, "0:in", "activation", "rms") == pytest.approx([rms(x)], rel=1e-5)


def test_two_lines_in_any_loop():
    model, x, y = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = Monitor(model, optimizer, every=1).start()
    one_step(model, optimizer, x, y)
    recording = monitor.close()
    assert recording is monitor.close()
    assert recording.steps("activation", "rms").tolist() == [0]
    one_step(model, optimizer, x, y)
    assert monitor.step == 1
    with pytest.raises(RuntimeError, match="already started"):
        monitor.start()


def test_two_monitors_at_once_see_the_same():
    model, x, y = build()
    alone, *_ = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Monitor(model, optimizer, every=1) as outer, Monitor(model, optimizer, every=2, stats="core") as inner:
        for _ in range(3):
            one_step(model, optimizer, x, y)
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    with Monitor(alone, optimizer, every=1) as single:
        for _ in range(3):
            one_step(alone, optimizer, x, y)
    for found, steps in ((outer, [0, 1, 2]), (inner, [0, 2])):
        for key in (
            ("0:out", "activation", "rms"),
            ("0:out", "activation_grad", "rms"),
            ("2.weight", "update", "l2_norm"),
        ):
            assert found.recording.series(*key)[0].tolist() == steps
            assert values(found.recording, *key) == pytest.approx(values(single.recording, *key)[steps], rel=1e-4), key


# ---------------------------------------------------------------------- precision
def test_autocast_is_read_in_the_precision_it_computes_in():
    model, x, y = build()
    twin = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Monitor(model, optimizer, every=1) as monitor:
        with torch.autocast("cpu", torch.bfloat16):
            loss = mse(model, x, y)
        loss.backward()
        optimizer.step()
    with torch.autocast("cpu", torch.bfloat16):
        out = twin[0](x)
        (twin[1:](out) - y).square().mean().backward()
    assert out.dtype == torch.bfloat16
    assert values(monitor.recording, "0:out", "activation", "rms") == pytest.approx([rms(out)], rel=1e-5)
    assert values(monitor.recording, "0:out", "activation", "std") == pytest.approx(
        [out.double().std(correction=0).item()], rel=1e-4
    )
    assert values(monitor.recording, "run", "run", "grad_norm") == pytest.approx([grad_norm(twin)], rel=1e-5)


@pytest.mark.parametrize("fused", [False, True])
def test_a_scaled_loss_is_unscaled_and_a_skipped_step_is_none(fused):
    model, x, y = build()
    twin = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1)
    bad = x.clone()
    bad[0, 0] = math.inf
    with Monitor(model, optimizer, every=1, scaler=scaler) as monitor:
        for batch in (x, bad, x):
            optimizer.zero_grad()
            loss = mse(model, batch, y)
            monitor.log(loss=loss)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    assert monitor.step == 2
    bare = torch.optim.AdamW(twin.parameters(), lr=0.01, fused=fused)
    wanted = []
    for _ in range(2):
        bare.zero_grad()
        out = twin[0](x)
        out.retain_grad()
        (twin[1:](out) - y).square().mean().backward()
        before = twin[0].weight.detach().clone()
        norms = (grad_norm(twin), rms(out.grad), rms(out))
        bare.step()
        wanted.append((*norms, (twin[0].weight - before).norm().item()))
    recording = monitor.recording
    keys = [
        ("run", "run", "grad_norm"),
        ("0:out", "activation_grad", "rms"),
        ("0:out", "activation", "rms"),
        ("0.weight", "update", "l2_norm"),
    ]
    for key, column in zip(keys, zip(*wanted, strict=True), strict=True):
        assert recording.series(*key)[0].tolist() == [0, 1]
        assert values(recording, *key) == pytest.approx(column, rel=1e-3), key
    assert np.isfinite(values(recording, "run", "run", "loss")).all()


def test_clipping_between_backward_and_step_shows_and_the_norm_before_it_is_logged():
    model, x, y = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Monitor(model, optimizer, every=1) as monitor:
        mse(model, x, y).backward()
        total = nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        monitor.log(unclipped_grad_norm=total)
        optimizer.step()
    assert values(monitor.recording, "run", "run", "grad_norm") == pytest.approx([0.01], rel=1e-3)
    assert values(monitor.recording, "run", "run", "unclipped_grad_norm") == pytest.approx([total.item()])


# ---------------------------------------------------------------------- compilers
def compiled(kind):
    model, x, y = build()
    if kind == "whole":
        return torch.compile(model, backend="eager"), x, y
    if kind == "in place":
        model.compile(backend="eager")
    elif kind == "blocks in place":
        for index in (0, 2, 4):
            model[index].compile(backend="eager")
    else:
        model[2] = torch.compile(model[2], backend="eager")
    return model, x, y


# PyTorch's compiler looks at a tensor it warns of looking at.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize("kind", ["whole", "in place", "blocks in place", "wrapped block"])
def test_a_compiled_model_is_read_like_the_plain_one(kind):
    torch._dynamo.reset()
    runs, x, y = compiled(kind)
    plain, *_ = build()
    frames = []
    for watched, called in ((runs, runs), (plain, plain)):
        optimizer = torch.optim.SGD(called.parameters(), lr=0.1)
        with Monitor(watched, optimizer, every=2) as monitor:
            for _ in range(4):
                one_step(called, optimizer, x, y)
        frames.append(monitor.recording.to_pandas().sort_values(["step", "site", "role", "stat"], ignore_index=True))
    left, right = frames
    labels = ["step", "site", "role", "stat"]
    assert left[labels].astype(str).equals(right[labels].astype(str))
    assert left.value.to_numpy() == pytest.approx(right.value.to_numpy(), rel=1e-5)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_compiled_code_is_kept_and_runs_between_sampled_steps():
    torch._dynamo.reset()
    graphs = []

    def backend(graph, inputs):
        calls = []
        graphs.append(calls)
        return lambda *args: (calls.append(1), graph.forward(*args))[1]

    model, x, y = build()
    runs = torch.compile(model, backend=backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Monitor(runs, optimizer, every=3):
        for _ in range(6):
            one_step(runs, optimizer, x, y)
    assert [len(calls) for calls in graphs] == [4]
    one_step(runs, optimizer, x, y)
    assert [len(calls) for calls in graphs] == [5]
