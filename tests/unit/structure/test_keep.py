"""A model is left as found: flags, buffers, parameters, random state, gradients, hooks, attributes, inputs."""

import gc
import random
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module

from kilolayer.structure import keep, read_structure


class Restless(nn.Module):
    """Changes whatever a forward pass can change."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.embedding = nn.Embedding(5, 4, max_norm=0.1)
        self.register_buffer("runs", torch.zeros(()))
        self.register_buffer("kept", None)
        self.outputs = []
        self.count = 0

    def forward(self, x):
        self.runs += 1
        self.count += 1
        self.outputs.append(x)
        self.kept = x.detach()
        self.fresh = torch.rand(3)
        np.random.rand()
        random.random()
        x.mul_(2)
        h = nn.functional.batch_norm(self.linear(x), self.norm.running_mean, self.norm.running_var, training=True)
        return x + h + self.embedding(torch.tensor([1, 2, 3])).sum(0)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Restless()


@pytest.fixture
def inputs():
    return (torch.randn(6, 4),)


def test_training_flags_of_every_module(model, inputs):
    model.norm.eval()
    before = [module.training for module in model.modules()]
    read_structure(model, inputs)
    assert [module.training for module in model.modules()] == before == [True, True, False, True]


def test_train_and_eval_are_not_called(inputs):
    class Counting(nn.Linear):
        def train(self, mode=True):
            raise AssertionError("merges weights")

    read_structure(Counting(4, 4), inputs)


def test_buffers_and_parameters(model, inputs):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    identities = {name: value.data_ptr() for name, value in model.state_dict().items()}
    read_structure(model, inputs)
    after = model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert {name: value.data_ptr() for name, value in after.items()} == identities
    assert model.kept is None


def test_the_pass_does_change_them_without_us(model, inputs):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model(*inputs)
    changed = {name for name, value in before.items() if not torch.equal(model.state_dict()[name], value)}
    assert {"runs", "norm.running_mean", "norm.running_var", "embedding.weight"} <= changed


def test_attributes_and_what_they_hold(model, inputs):
    keys = set(vars(model))
    read_structure(model, inputs)
    assert (model.count, model.outputs, set(vars(model))) == (0, [], keys)


def test_inputs(model, inputs):
    before = inputs[0].clone()
    read_structure(model, inputs)
    assert torch.equal(inputs[0], before)


def test_random_states(model, inputs):
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    before = (torch.rand(1), np.random.rand(), random.random())
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    read_structure(model, inputs)
    assert (torch.rand(1), np.random.rand(), random.random()) == before


def test_gradients_and_their_flags(model, inputs):
    model.linear.weight.grad = torch.ones(4, 4)
    model.embedding.weight.requires_grad_(False)
    grad = model.linear.weight.grad
    read_structure(model, inputs)
    assert model.linear.weight.grad is grad
    assert torch.equal(grad, torch.ones(4, 4))
    assert model.linear.bias.grad is None
    assert [p.requires_grad for p in model.parameters()] == [True, True, True, True, False]


def test_hooks(model, inputs):
    seen = []
    model.linear.register_forward_hook(lambda *_: seen.append("hook"))
    globals_before = dict(torch_module._global_forward_hooks), dict(torch_module._global_forward_pre_hooks)
    read_structure(model, inputs)
    assert seen == ["hook"]
    assert len(model.linear._forward_hooks) == 1
    assert (dict(torch_module._global_forward_hooks), dict(torch_module._global_forward_pre_hooks)) == globals_before


@pytest.mark.parametrize("enabled", [True, False])
def test_global_flags(model, inputs, enabled):
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(enabled)
    try:
        with torch.set_grad_enabled(not enabled):
            read_structure(model, inputs)
            assert torch.is_grad_enabled() is not enabled
        assert torch.backends.mha.get_fastpath_enabled() is enabled
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def test_after_an_error_of_the_model_too(model):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(RuntimeError, match="shapes"):
        read_structure(model, (torch.randn(6, 5),))
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
    assert (model.count, model.outputs, model.training) == (0, [], True)
    assert not torch_module._global_forward_hooks
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


def test_training_goes_on_as_if_nothing_had_been():
    def train(read):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 1))
        optimizer = torch.optim.Adam(model.parameters())
        for step in range(4):
            if read and step == 2:
                read_structure(model, (torch.randn(5, 4, generator=torch.Generator().manual_seed(0)),))
            optimizer.zero_grad()
            loss = model(torch.randn(6, 4)).square().mean()
            loss.backward()
            optimizer.step()
        return model.state_dict()

    plain, read = train(False), train(True)
    assert all(torch.equal(plain[name], read[name]) for name in plain)


def test_what_was_saved_for_a_backward_pass_goes_with_the_pass(monkeypatch):
    made = []

    class Aside(keep.SavedAside):
        def __init__(self):
            super().__init__()
            made.append(weakref.ref(self))

    monkeypatch.setattr(keep, "SavedAside", Aside)
    read_structure(nn.Sequential(nn.Linear(4, 4), nn.Sigmoid(), nn.Linear(4, 4)), (torch.randn(2, 4),))
    gc.collect()
    assert [reference() for reference in made] == [None]
