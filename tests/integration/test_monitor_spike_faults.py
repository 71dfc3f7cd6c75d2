"""Faults put into one known layer of networks of several kinds: triage names that layer first."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kilolayer.monitor import Monitor, find_spikes

NUM_STEPS, AT = 40, 32


class Amplify(torch.autograd.Function):
    """Passes its input on, and multiplies the gradient."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return ctx.factor * grad, None


class Block(nn.Module):
    """A residual block in which a fault can be switched on: a factor on its branch, or on the gradient that enters it."""

    def __init__(self, norm, branch):
        super().__init__()
        self.norm, self.branch = norm, branch
        self.forward_factor = self.backward_factor = 1.0

    def forward(self, x):
        branch_out = self.branch(self.norm(x)) * self.forward_factor
        return Amplify.apply(x + branch_out, self.backward_factor)


class SelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


def mlp():
    blocks = [Block(nn.LayerNorm(8), nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))) for _ in range(5)]
    return nn.Sequential(nn.Linear(8, 8), *blocks, nn.Linear(8, 8)), (32, 8)


def transformer():
    blocks = []
    for _ in range(3):
        blocks.append(Block(nn.LayerNorm(8), SelfAttention()))
        blocks.append(Block(nn.LayerNorm(8), nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))))
    return nn.Sequential(nn.Linear(8, 8), *blocks, nn.Linear(8, 8)), (16, 5, 8)


def conv():
    blocks = [
        Block(nn.BatchNorm2d(4), nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1)))
        for _ in range(5)
    ]
    return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), *blocks, nn.Conv2d(4, 2, 1)), (16, 2, 6, 6)


def train(build, *, fault=None, seed=0, noise=0.0, every=1):
    torch.manual_seed(seed)
    model, shape = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Monitor(model, optimizer, every=every) as monitor:
        for step in range(NUM_STEPS):
            if fault is not None:
                place, kind, factor = fault
                setattr(model[place], f"{kind}_factor", factor if step == AT else 1.0)
            x = torch.randn(shape)
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), x.sin() + noise * torch.randn(shape))
            loss.backward()
            monitor.log(loss=loss)
            optimizer.step()
            if step == AT:
                break
    return monitor.recording


@pytest.mark.parametrize("place", [1, 3, 5])
@pytest.mark.parametrize("build", [mlp, transformer, conv])
def test_an_activation_that_blows_up_is_named_where_it_does(build, place):
    (spike,) = find_spikes(train(build, fault=(place, "forward", 1e4)))
    assert spike.step == AT
    assert spike.loss_factor > 10
    first = spike.departures[0]
    # The branch's own output is what it was; the sum is the first to be seen.
    assert (first.site, first.role, first.step) == (f"{place}:sum", "activation", AT)
    assert spike.first_site == f"{place}:sum"
    roles = [departure.role == "activation" for departure in spike.departures]
    assert roles == sorted(roles, reverse=True)
    assert any(not role for role in roles)


@pytest.mark.parametrize("place", [1, 3, 5])
@pytest.mark.parametrize("build", [mlp, transformer, conv])
def test_a_gradient_that_blows_up_is_named_where_it_does(build, place):
    (spike,) = find_spikes(train(build, fault=(place, "backward", 1e4)))
    assert (spike.step, spike.loss_factor) == (AT, None)
    assert all(departure.role != "activation" for departure in spike.departures)
    # The gradient is as it was above the block, and 1e4 times that in its branch and below.
    assert spike.first_site.startswith(f"{place}."), spike.departures[:3]
    assert spike.departures[0].factor > 1e3
    above = {f"{higher}.branch" for higher in range(place + 1, 7)}
    assert not any(departure.site.startswith(tuple(above)) for departure in spike.departures)


@pytest.mark.parametrize("build", [mlp, transformer, conv])
def test_the_layer_is_found_between_samples_too(build):
    (spike,) = find_spikes(train(build, fault=(3, "backward", 1e4), every=NUM_STEPS))
    assert spike.first_site.startswith("3."), spike.departures[:3]
    assert {departure.role for departure in spike.departures} == {"param_grad"}


@pytest.mark.parametrize("build", [mlp, transformer, conv])
def test_noisy_healthy_training_raises_no_alarm(build):
    for seed in range(3):
        assert find_spikes(train(build, seed=seed, noise=1.0)) == []
