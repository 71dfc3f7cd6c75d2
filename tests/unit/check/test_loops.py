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


def classifier(**more):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 4)), torch.randn(64, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    more = {key: make(optimizer) if key == "scheduler" else make for key, make in more.items()}
    return kl.Setup(model, (x, x[:, :4].argmax(1)), nn.CrossEntropyLoss(), optimizer=optimizer, **more)


def drops_gradients(model, inputs, targets, loss_fn, optimizer):
    loss = loss_fn(model(inputs), targets)
    loss.backward()
    optimizer.zero_grad()
    optimizer.step()
    return loss


def takes_no_step(model, inputs, targets, loss_fn, optimizer):
    optimizer.zero_grad()
    loss = loss_fn(model(inputs), targets)
    loss.backward()
    return loss


def test_gradients_dropped_in_front_of_the_step_are_not_called_clipped():
    diagnosis = kl.check(lambda: classifier(train_step=drops_gradients))
    assert "clipping" not in diagnosis.root.message
    assert "zero_grad" in diagnosis.root.message
    assert "before backward" in diagnosis.root.remedy or "in front of backward" in diagnosis.root.remedy
    assert [trial.steps for trial in diagnosis.trials] == [0]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"train_step": takes_no_step}, "the optimizer took no step"),
        (
            {"scheduler": lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)},
            "the schedule takes the learning rate from 0.05 to",
        ),
    ],
    ids=["no-step", "faded"],
)
def test_a_run_whose_weights_stay_says_why_they_do(fields, said):
    diagnosis = kl.check(classifier(**fields), trial=False)
    assert diagnosis.root is None
    assert said in diagnosis.unexplained


@pytest.mark.parametrize(
    "loss_fn", [nn.MSELoss(), nn.SmoothL1Loss(), nn.HuberLoss()], ids=lambda one: type(one).__name__
)
def test_targets_below_a_relu_are_out_of_reach_of_every_loss_on_real_numbers(loss_fn):
    torch.manual_seed(0)
    x = torch.randn(128, 5)
    model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1), nn.ReLU())
    setup = kl.Setup(model, (x, -3 - x[:, :1].abs()), loss_fn, optimizer=torch.optim.Adam(model.parameters(), lr=0.01))
    root = kl.check(setup, trial=False).root
    assert (root.cause, root.first_site) == ("output-activation-wrong", "3")


def test_log_probabilities_help_a_likelihood_that_had_no_floor():
    def build():
        setup = classifier()
        setup.loss_fn = nn.NLLLoss()
        setup.optimizer = torch.optim.Adam(setup.model.parameters(), lr=0.03)
        return setup

    diagnosis = kl.check(build, steps=60)
    assert diagnosis.root.cause == "output-loss-mismatch"
    assert [trial.helped for trial in diagnosis.trials if trial.steps] == [True]


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.units, self.out = nn.GRU(8, 16), nn.Linear(16, 3)

    def forward(self, x):
        return self.out(self.units(x.reshape(x.shape[1], x.shape[0], 8))[0][-1])


def test_samples_mixed_by_a_reshape_get_a_remedy_of_their_own():
    def build():
        torch.manual_seed(0)
        model, x = Recurrent(), torch.randn(32, 6, 8)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        return model, x, x[:, 0, :3].argmax(1), nn.CrossEntropyLoss(), optimizer

    diagnosis = kl.check(build, steps=20)
    assert diagnosis.root.cause == "wrong-axis"
    assert "transpose" in diagnosis.root.remedy
    assert not [trial for trial in diagnosis.trials if trial.steps]
