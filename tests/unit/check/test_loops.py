"""Loops of the user's own: what is a fault of theirs, and what only looks like one."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import kilolayer as kl
from kilolayer.check import examine


class Pair(nn.Module):
    """A generator and a discriminator."""

    def __init__(self):
        super().__init__()
        self.made = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))
        self.judged = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))

    def forward(self, x):
        return self.judged(x)


def adversaries():
    torch.manual_seed(0)
    model = Pair()
    maker = torch.optim.Adam(model.made.parameters(), lr=1e-3)
    judge = torch.optim.Adam(model.judged.parameters(), lr=1e-3)

    def step(model, inputs, targets, loss_fn, optimizer):
        fake = model.made(torch.randn(len(inputs), 4))
        judge.zero_grad()
        loss = loss_fn(model(inputs), targets) + loss_fn(model(fake.detach()), torch.zeros_like(targets))
        loss.backward()
        judge.step()
        maker.zero_grad()
        loss_fn(model(fake), targets).backward()  # leaves gradients in the judge, which it drops before its next step
        maker.step()
        return loss

    batch = (3 + torch.randn(64, 8), torch.ones(64, 1))
    return kl.Setup(model, batch, nn.BCEWithLogitsLoss(), optimizer=judge, train_step=step)


def test_gradients_that_another_loss_leaves_behind_are_no_fault_where_they_are_dropped():
    diagnosis = kl.check(adversaries, trial=False)
    assert not diagnosis.findings
    assert diagnosis.unexplained is None


@pytest.mark.parametrize("first", ["step", "backward"])
def test_gradients_that_the_optimizer_steps_on_are(first):
    def step(model, inputs, targets, loss_fn, optimizer):
        if first == "step":
            F.mse_loss(model(inputs), torch.zeros_like(targets)).backward()  # adds to what is there
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss

    torch.manual_seed(0)
    model, x = nn.Linear(4, 1), torch.randn(32, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    setup = kl.Setup(model, (x, x[:, :1]), nn.MSELoss(), optimizer=optimizer, train_step=step)
    assert examine(setup, steps=4).facts["examination"]["run"]["stale_gradients"] == ["bias", "weight"]


@pytest.mark.parametrize("kind", ["sparse", "complex"])
def test_gradients_of_every_layout_and_type_are_measured(kind, recwarn):
    torch.manual_seed(0)
    if kind == "sparse":
        tokens = torch.randint(50, (64, 4))
        model = nn.Sequential(nn.EmbeddingBag(50, 8, sparse=True), nn.Linear(8, 1))
        batch, optimizer = (tokens, (tokens % 2).float().mean(1, keepdim=True)), torch.optim.Adagrad
    else:
        model = Filter()
        x = torch.randn(64, 16)
        batch, optimizer = (x, x.roll(1, 1)), torch.optim.Adam
    setup = kl.Setup(model, batch, nn.MSELoss(), optimizer=optimizer(model.parameters(), lr=0.1))
    run = examine(setup, steps=4).facts["examination"]["run"]
    assert run["unclipped_grad_norm"] == pytest.approx(run["clipped_grad_norm"], rel=1e-5)
    assert run["clipped_grad_norm"][0] > 0
    assert not [one for one in recwarn if "imaginary" in str(one.message)]


class Filter(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(9, dtype=torch.cfloat))

    def forward(self, x):
        return torch.fft.irfft(torch.fft.rfft(x) * self.weight, n=16)
