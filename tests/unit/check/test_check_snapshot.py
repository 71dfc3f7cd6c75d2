"""Everything a step may change is put back, bit by bit."""

import copy
import random

import numpy as np
import pytest
import torch
from torch import nn

import kilolayer as kl
from kilolayer.check import Setup, train
from kilolayer.check.snapshot import kept


class Counting(nn.Module):
    """Has everything that training changes: buffers, dropout, attributes, a generator, a list."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))
        self.calls = 0
        self.seen = []
        self.cache = {"mean": torch.zeros(6)}
        self.noise = torch.Generator().manual_seed(5)

    def forward(self, x):
        self.calls += 1
        self.seen.append(len(x))
        self.cache["mean"] = x.mean(0)
        return self.net(x + 0.01 * torch.randn(x.shape, generator=self.noise))


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw-amsgrad": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
}


def make(name, *, steps_before):
    torch.manual_seed(0)
    model = Counting()
    optimizer = OPTIMIZERS[name](model.parameters())
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
    x = torch.randn(16, 6)
    setup = Setup(model, (x, torch.arange(16) % 3), nn.CrossEntropyLoss(), optimizer=optimizer, scheduler=scheduler)
    if steps_before:
        train(setup, steps_before)
    return setup


def flat(tree):
    """Nested state as pairs of a path and its bits."""
    if isinstance(tree, torch.Tensor):
        return [tree.detach().clone().contiguous().view(-1).view(torch.uint8).tolist() if tree.dim() else tree.item()]
    if isinstance(tree, torch.Generator):
        return tree.get_state().tolist()
    if isinstance(tree, dict):
        return [(str(key), flat(value)) for key, value in tree.items()]
    if isinstance(tree, (list, tuple)):
        return [flat(value) for value in tree]
    return tree if isinstance(tree, (int, float, str, bool, type(None))) else type(tree).__name__


def state(setup):
    model = setup.model
    return copy.deepcopy(
        {
            "model": flat(model.state_dict()),
            "grads": flat([parameter.grad for parameter in model.parameters()]),
            "optimizer": flat(setup.optimizer.state_dict()),
            "scheduler": flat(setup.scheduler.state_dict()),
            "modes": [module.training for module in model.modules()],
            "attributes": flat([model.calls, model.seen, model.cache, model.noise]),
            "batch": flat(setup.batch),
            "random": [str(random.getstate()), str(np.random.get_state()), flat(torch.get_rng_state())],
            "hooks": [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()],
            "optimizer hooks": len(setup.optimizer._optimizer_step_pre_hooks),
        }
    )


@pytest.mark.parametrize("steps_before", [0, 3], ids=["fresh", "in-training"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_within_leaves_nothing_behind(name, steps_before):
    setup = make(name, steps_before=steps_before)
    setup.model.net[3].eval()
    before, identities = state(setup), [id(p) for p in setup.model.parameters()]
    with kept(setup):
        train(setup, 4)
        setup.model.eval()
        setup.batch[0].mul_(3)
        random.random()
        np.random.rand()
        assert state(setup) != before
    assert state(setup) == before
    assert [id(p) for p in setup.model.parameters()] == identities


@pytest.mark.parametrize("name", ["momentum", "adam"])
def test_a_whole_check_leaves_nothing_behind_and_training_goes_on_as_it_would_have(name):
    checked, other = make(name, steps_before=2), make(name, steps_before=2)
    torch.manual_seed(11)
    before = state(checked)
    kl.check(checked, steps=6)
    assert state(checked) == before
    torch.manual_seed(12)
    first = train(checked, 5).losses
    torch.manual_seed(12)
    assert train(other, 5).losses == first


def test_gradients_keep_their_objects_and_those_that_were_none_stay_none():
    setup = make("sgd", steps_before=1)
    parameters = list(setup.model.parameters())
    parameters[0].grad = None
    grads = [parameter.grad for parameter in parameters]
    kl.check(setup, steps=3)
    assert all(parameter.grad is grad for parameter, grad in zip(parameters, grads, strict=True))


def test_an_error_within_restores_too():
    setup = make("adam", steps_before=1)
    before = state(setup)

    def fail():
        with kept(setup):
            train(setup, 2)
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        fail()
    assert state(setup) == before


def test_negative_zeros_come_back_as_they_were():
    setup = make("sgd", steps_before=0)
    weight = setup.model.net[0].weight
    with torch.no_grad():
        weight[0] = -0.0
    with kept(setup), torch.no_grad():
        weight[0] = 0.0
    assert bool(torch.signbit(weight[0]).all())


def test_trained_tensors_that_no_module_lists_are_left_as_they_were():
    class Hidden(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = [nn.Linear(4, 4)]
            self.out = nn.Linear(4, 3)

        def forward(self, x):
            return self.out(torch.relu(self.layers[0](x)))

    model = Hidden()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    setup = Setup(model, (torch.randn(12, 4), torch.arange(12) % 3), nn.CrossEntropyLoss(), optimizer=optimizer)
    assert kl.check(setup, steps=4).root.cause == "parameters-not-registered"
    assert model.layers[0].weight.grad is None
