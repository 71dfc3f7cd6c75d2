"""Compiled models: whatever comes first, the monitor or the compiler, and with code that is not broken up."""

import sys
import types

import pytest
import torch
from torch import nn

from kilolayer.monitor import Monitor
from kilolayer.monitor.eager import uses_flex_attention

# PyTorch's compiler looks at a tensor it warns of looking at.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")


class Backend:
    """Runs graphs as they are and counts them and their calls."""

    def __init__(self):
        self.num_graphs = self.num_calls = 0

    def __call__(self, graph, inputs):
        self.num_graphs += 1

        def run(*args):
            self.num_calls += 1
            return graph.forward(*args)

        return run


@pytest.fixture(autouse=True)
def reset():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Net(nn.Module):
    """A class of its own: the compiler passes over ``nn.Sequential``'s."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(6, 8)
        self.layers = nn.Sequential(nn.Tanh(), nn.Linear(8, 8), nn.LayerNorm(8))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.layers(self.stem(x)))


def build():
    torch.manual_seed(0)
    return Net(), torch.randn(12, 6)


def one_step(model, optimizer, x):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def rows(recording):
    frame = recording.to_pandas().astype(dict.fromkeys(("site", "role", "stat"), str))
    return frame.sort_values(["step", "site", "role", "stat"], ignore_index=True)


def in_eager(num_steps, every):
    model, x = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Monitor(model, optimizer, every=every) as monitor:
        for _ in range(num_steps):
            one_step(model, optimizer, x)
    return rows(monitor.recording)


def compile_around(model, backend):
    return torch.compile(model, backend=backend, fullgraph=True)


def compile_in_place(model, backend):
    model.compile(backend=backend, fullgraph=True)
    return model


@pytest.mark.parametrize("compile_model", [compile_around, compile_in_place])
def test_attached_before_compilation(compile_model):
    backend = Backend()
    model, x = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Monitor(model, optimizer, every=3) as monitor:
        runs = compile_model(model, backend)
        for _ in range(7):
            one_step(runs, optimizer, x)
    wanted, found = in_eager(7, 3), rows(monitor.recording)
    assert found[["step", "site", "role", "stat"]].equals(wanted[["step", "site", "role", "stat"]])
    assert found.value.to_numpy() == pytest.approx(wanted.value.to_numpy(), rel=1e-5, nan_ok=True)
    # Steps 1, 2, 4 and 5 ran the one graph, whole; steps 0, 3 and 6 were sampled.
    assert (backend.num_graphs, backend.num_calls) == (1, 4)
    one_step(runs, optimizer, x)
    assert (backend.num_graphs, backend.num_calls) == (1, 5)


def test_compiled_in_mid_run_it_is_read_again_from_the_sampled_step_after_the_next():
    backend = Backend()
    model, x = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Monitor(model, optimizer, every=2) as monitor:
        for _ in range(3):
            one_step(model, optimizer, x)
        runs = compile_around(model, backend)
        for _ in range(6):
            one_step(runs, optimizer, x)
    assert monitor.recording.steps("activation", "rms").tolist() == [0, 2, 6, 8]
    assert monitor.recording.steps("update", "update_ratio").tolist() == [0, 2, 4, 6, 8]
    assert backend.num_graphs == 1


def test_a_plain_model_leaves_other_compiled_code_alone():
    backend = Backend()
    model, x = build()
    scale = torch.compile(lambda loss: 2 * loss, backend=backend, fullgraph=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Monitor(model, optimizer, every=1):
        for _ in range(4):
            optimizer.zero_grad()
            scale(model(x).square().mean()).backward()
            optimizer.step()
    # Whether the model is compiled from outside is known once it has run.
    assert backend.num_calls == 3


def test_attention_that_is_compiled_on_its_own_is_left_alone():
    from torch.nn.attention import flex_attention  # noqa: F401

    model, _ = build()
    assert not uses_flex_attention(model)
    model.config = types.SimpleNamespace(_attn_implementation="flex_attention")
    assert uses_flex_attention(model)
    source = types.ModuleType("a_model_of_mine")
    source.flex_attention = None
    mine = type("Mine", (nn.Linear,), {"__module__": "a_model_of_mine"})(2, 2)
    assert not uses_flex_attention(mine)
    sys.modules["a_model_of_mine"] = source
    try:
        assert uses_flex_attention(mine)
    finally:
        del sys.modules["a_model_of_mine"]


def test_nothing_of_the_compiler_is_held_back_after_an_exception():
    backend = Backend()
    model, x = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    runs = compile_around(model, backend)
    with pytest.raises(RuntimeError, match="mine"), Monitor(runs, optimizer, every=1):
        one_step(runs, optimizer, x)
        raise RuntimeError("mine")
    assert backend.num_calls == 0
    one_step(runs, optimizer, x)
    assert backend.num_calls == 1
