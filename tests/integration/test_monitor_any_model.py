"""The monitor on models nobody here wrote: every number against hooks and arithmetic of the test's own."""

import contextlib
import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from kilolayer.monitor import Monitor, describe_sites
from kilolayer.structure import read_structure


class Pair(nn.Module):
    """Returns a tuple and a dict of tensors, as many models do."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)

    def forward(self, x):
        return {"name": "pair", "mask": x > 0, "hidden": (self.first(x), self.second(x))}


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.pair = Pair()
        self.head = nn.Linear(4, 2)

    def forward(self, *, x):
        first, second = self.pair(x)["hidden"]
        return self.head(torch.tanh(first) * second)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.lstm = nn.LSTM(4, 5, num_layers=2, batch_first=True)
        self.head = nn.Linear(5, 7)

    def forward(self, tokens):
        return self.head(self.lstm(self.embedding(tokens))[0])


class Tied(nn.Module):
    """One matrix as embedding and head, one block called three times."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.block = nn.Linear(4, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        h = self.embedding(tokens)
        for _ in range(3):
            h = h + torch.tanh(self.block(h))
        return self.head(h)


class Checkpointed(nn.Module):
    def __init__(self, use_reentrant):
        super().__init__()
        self.stem = nn.Linear(4, 4)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout(0.3)) for _ in range(3))
        self.use_reentrant = use_reentrant

    def forward(self, x):
        h = self.stem(x)
        for block in self.blocks:
            h = h + (block(h) if self.use_reentrant is None else checkpoint(block, h, use_reentrant=self.use_reentrant))
        return h


def transformer():
    return nn.Transformer(8, 2, 1, 2, 16, dropout=0.0, batch_first=True)


def conv_net():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3), nn.Sigmoid()
    )


TOKENS = torch.arange(12).view(3, 4) % 7
MODELS = {
    "transformer": (transformer, lambda: (torch.randn(3, 5, 8), torch.randn(3, 4, 8)), {}),
    "conv": (conv_net, lambda: (torch.randn(5, 1, 8, 8),), {}),
    "lstm": (Recurrent, lambda: (TOKENS,), {}),
    "tied and shared": (Tied, lambda: (TOKENS,), {}),
    "tuples and dicts": (Outer, lambda: (), {"x": torch.ones(3, 4).cumsum(0) / 3}),
    "checkpoint": (lambda: Checkpointed(False), lambda: (torch.randn(6, 4),), {}),
    "reentrant checkpoint": (lambda: Checkpointed(True), lambda: (torch.randn(6, 4, requires_grad=True),), {}),
}


def build(name):
    torch.manual_seed(3)
    make, draw, kwargs = MODELS[name]
    return make(), draw(), kwargs


def train(model, args, kwargs, *, num_steps=3, monitor=None, lr=0.1, optimizer=None):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    torch.manual_seed(5)
    losses = []
    with Monitor(model, optimizer, **monitor) if monitor is not None else contextlib.nullcontext() as found:
        for _ in range(num_steps):
            optimizer.zero_grad()
            loss = model(*args, **kwargs).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses, None if found is None else found.recording


def first_float(output):
    if isinstance(output, torch.Tensor):
        return output if output.is_floating_point() else None
    parts = output.values() if isinstance(output, dict) else output if isinstance(output, tuple) else ()
    return next((tensor for part in parts if (tensor := first_float(part)) is not None), None)


def watch(model, sites):
    """Outputs of the sites' modules, call by call, with their gradients kept."""
    kept = {}
    for path in {site.path for site in sites if site.name.endswith(":out")}:

        def keep(module, args, output, path=path):
            tensor = first_float(output)
            if tensor.requires_grad:
                tensor.retain_grad()
            kept.setdefault(path, []).append((tensor, tensor.detach().clone()))

        model.get_submodule(path).register_forward_hook(keep)
    return kept


def rms(tensor):
    return tensor.double().square().mean().sqrt().item()


@pytest.mark.parametrize("name", [name for name in MODELS if "checkpoint" not in name])
def test_every_output_and_its_gradient_is_what_a_hook_of_the_test_sees(name):
    model, args, kwargs = build(name)
    twin = copy.deepcopy(model)
    inputs = dict(kwargs) if kwargs else args
    sites = [site for site in describe_sites(twin, inputs) if site.kind not in ("weight", "parameter")]
    kept = watch(twin, sites)
    _, recording = train(model, args, kwargs, num_steps=1, monitor={"every": 1})
    train(twin, args, kwargs, num_steps=1)
    assert kept
    for path, calls in kept.items():
        for number, (tensor, value) in enumerate(calls):
            site = f"{path}:out" if len(calls) == 1 else f"{path}#{number}:out"
            assert recording.series(site, "activation", "rms")[1] == pytest.approx([rms(value)], rel=1e-5), site
            assert recording.series(site, "activation", "max_abs")[1] == pytest.approx(
                [value.abs().max().item()], rel=1e-5
            )
            if tensor.requires_grad:
                found = recording.series(site, "activation_grad", "rms")[1]
                assert found == pytest.approx([rms(tensor.grad)], rel=1e-4, abs=1e-9), site


@pytest.mark.parametrize("name", MODELS)
def test_training_is_bit_identical_and_the_model_left_as_found(name):
    model, args, kwargs = build(name)
    twin = copy.deepcopy(model)
    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]
    with_monitor, _ = train(model, args, kwargs, monitor={"every": 2})
    state = torch.get_rng_state()
    without, _ = train(twin, args, kwargs)
    assert with_monitor == without
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), twin.state_dict().values(), strict=True))
    assert hooks == [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]
    assert model.training


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_has_its_norm_gradient_and_update(name):
    model, args, kwargs = build(name)
    twin = copy.deepcopy(model)
    before = {path: parameter.detach().clone() for path, parameter in twin.named_parameters()}
    _, recording = train(model, args, kwargs, num_steps=1, monitor={"every": 1})
    train(twin, args, kwargs, num_steps=1)
    total = 0.0
    for path, parameter in twin.named_parameters():
        size, move = before[path].double().norm().item(), (parameter - before[path]).double().norm().item()
        total += parameter.grad.double().square().sum().item()
        assert recording.series(path, "param", "l2_norm")[1] == pytest.approx([size], rel=1e-5), path
        grads = recording.series(path, "param_grad", "l2_norm")[1]
        assert grads == pytest.approx([parameter.grad.norm().item()], rel=1e-5, abs=1e-12), path
        assert recording.series(path, "update", "l2_norm")[1] == pytest.approx([move], rel=1e-5, abs=1e-12), path
        if size > 0:
            assert recording.series(path, "update", "update_ratio")[1] == pytest.approx([move / size], rel=1e-5)
    assert recording.series("run", "run", "grad_norm")[1] == pytest.approx([total**0.5], rel=1e-5)
    assert recording.series("run", "run", "lr")[1] == pytest.approx([0.1])


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpoint_is_read_once_and_like_the_plain_model(use_reentrant):
    recordings = []
    for kind in (None, use_reentrant):
        torch.manual_seed(3)
        model = Checkpointed(kind)
        x = torch.randn(6, 4, requires_grad=True)
        recordings.append(train(model, (x,), {}, monitor={"every": 1})[1].to_pandas())
    plain, repeated = (frame.sort_values(["step", "site", "role", "stat"], ignore_index=True) for frame in recordings)
    assert (
        plain[["step", "site", "role", "stat"]]
        .astype(str)
        .equals(repeated[["step", "site", "role", "stat"]].astype(str))
    )
    assert plain.value.to_numpy() == pytest.approx(repeated.value.to_numpy(), rel=1e-5, abs=1e-8, nan_ok=True)


def test_a_model_checkpointed_as_a_whole_is_read():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(5, 3, requires_grad=True)
    for use_reentrant in (False, True):
        with Monitor(model, optimizer, every=1) as monitor:
            checkpoint(model, x, use_reentrant=use_reentrant).sum().backward()
            optimizer.step()
        assert len(monitor.recording.series("0:out", "activation", "rms")[1]) == 1
        assert len(monitor.recording.series("0:out", "activation_grad", "rms")[1]) == 1


def test_calls_of_a_shared_module_are_sites_in_order_of_execution():
    model, args, kwargs = build("tied and shared")
    _, recording = train(model, args, kwargs, num_steps=1, monitor={"every": 1})
    names = [site.name for site in recording.sites if site.kind not in ("weight", "parameter")]
    assert names == ["embedding:out", "block#1:in", "block#2:in", "head:in", "head:out"]
    assert [site.order for site in recording.sites] == list(range(len(recording.sites)))
    assert sum(site.name in ("embedding.weight", "head.weight") for site in recording.sites) == 1


def test_what_a_pattern_names_beyond_the_structure_is_read_too():
    model, args, kwargs = build("tied and shared")
    _, recording = train(model, args, kwargs, num_steps=1, monitor={"every": 1, "sites": ["block:out", "head:in"]})
    assert recording.steps("activation").tolist() == [0]
    frame = recording.to_pandas()
    read = dict.fromkeys(frame[frame.role == "activation"].site)
    assert sorted(read) == ["block#0:out", "block#1:out", "block#2:out", "head:in"]
    assert [site.name for site in recording.stream()] == ["block#1:in", "block#2:in", "head:in"]


def test_a_structure_says_what_to_read():
    torch.manual_seed(0)
    model = Tied()
    structure = read_structure(model, (TOKENS,))
    _, recording = train(model, (TOKENS,), {}, num_steps=1, monitor={"every": 1, "sites": structure})
    assert [site.name for site in recording.stream()] == [site.name for site in structure.sites if site.stream]
    for site in recording.stream():
        assert len(recording.series(site.name, "activation", "rms")[1]) == 1, site.name
        assert site.skip_scale == 1.0


def test_saturation_of_bounded_activations_only():
    model, args, kwargs = build("conv")
    with torch.no_grad():
        model[5].bias += torch.tensor([9.0, -9.0, 0.0])
    twin = copy.deepcopy(model)
    _, recording = train(model, args, kwargs, num_steps=1, monitor={"every": 1})
    out = twin(*args)
    wanted = ((out <= 0.01) | (out >= 0.99)).double().mean().item()
    assert wanted > 0.5
    assert recording.series("6:out", "activation", "saturated_fraction")[1] == pytest.approx([wanted])
    assert not len(recording.series("2:out", "activation", "saturated_fraction")[1])
    assert recording.series("2:out", "activation", "zero_fraction")[1] > 0.1


def test_copies_and_pickles_of_a_watched_model_are_models_of_their_own():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(4, 3)
    with Monitor(model, optimizer, every=1) as monitor:
        twins = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), copy.copy(model)]
        model(x).sum().backward()
        for twin in twins[:2]:
            assert torch.equal(twin(x), model[1](model[0](x)))
            twin(100 * x).sum().backward()
        optimizer.step()
    assert b"kilolayer" not in pickle.dumps(model)
    assert monitor.recording.series("0:in", "activation", "rms")[1] == pytest.approx([rms(x)], rel=1e-5)


def test_a_pickle_taken_on_a_sampled_step_needs_no_kilolayer():
    model = nn.Linear(3, 3)
    with Monitor(model, every=1):
        assert model._forward_hooks
        assert b"kilolayer" not in pickle.dumps(model)


def test_a_module_run_a_thousand_times_is_read_sixty_four_times():
    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.RNNCell(2, 2)

        def forward(self, x):
            h = torch.zeros(3, 2)
            for _ in range(100):
                h = self.cell(x, h)
            return h

    model = Cell()
    _, recording = train(model, (torch.randn(3, 2),), {}, num_steps=1, monitor={"every": 1})
    assert sum(site.name.startswith("cell#") and site.name.endswith(":out") for site in recording.sites) == 64


def test_functions_that_return_nothing_and_non_tensors_do_no_harm():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.noise = nn.Parameter(torch.ones(2))

        def forward(self, x):
            self.last = (x * self.noise).sum()

    model = Odd()
    with Monitor(model, every=1) as monitor:
        model(torch.ones(2))
        model.last.backward()
        monitor.end_step()
    assert monitor.recording.series(":in", "activation", "rms")[1] == pytest.approx([1.0])
    assert monitor.recording.series("noise", "param_grad", "l2_norm")[1] == pytest.approx([2**0.5])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_types_of_parameters(dtype):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)).to(dtype)
    twin = copy.deepcopy(model)
    x = torch.randn(8, 16).to(dtype)
    _, recording = train(model, (x,), {}, num_steps=1, monitor={"every": 1})
    h = twin[0](x)
    assert recording.series("0:out", "activation", "rms")[1] == pytest.approx([rms(h)], rel=1e-5)
    before = {path: parameter.detach().clone() for path, parameter in twin.named_parameters()}
    train(twin, (x,), {}, num_steps=1)
    for path, parameter in twin.named_parameters():
        grad = parameter.grad.double().norm().item()
        assert recording.series(path, "param_grad", "l2_norm")[1] == pytest.approx([grad], rel=1e-5)
        move = (parameter.double() - before[path].double()).norm().item()
        assert recording.series(path, "update", "l2_norm")[1] == pytest.approx([move], rel=1e-2)


def test_what_half_precision_swallows_is_no_update():
    model = nn.Linear(4, 4, bias=False).to(torch.bfloat16)
    nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    with Monitor(model, optimizer, every=1) as monitor:
        F.relu(model(torch.ones(2, 4, dtype=torch.bfloat16))).sum().backward()
        optimizer.step()
    assert monitor.recording.series("weight", "param_grad", "l2_norm")[1] > 1
    assert monitor.recording.series("weight", "update", "l2_norm")[1].tolist() == [0.0]
