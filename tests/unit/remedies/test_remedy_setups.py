"""One fault under every form a set-up can have: the edit reaches it, and the trial shows it."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import kilolayer as kl
from kilolayer.check import examine, train
from kilolayer.diagnosis import diagnose
from kilolayer.diagnosis.examined import Examined
from kilolayer.remedies import prove

X = torch.randn(64, 12, generator=torch.Generator().manual_seed(4))
Y = X[:, :5].argmax(1)


class Classifier(nn.Module):
    """Takes keywords, and applies a softmax that the loss applies again."""

    def __init__(self):
        super().__init__()
        self.hidden, self.head = nn.Linear(12, 32), nn.Linear(32, 5)

    def forward(self, x, scale=1.0):
        return F.softmax(self.head(torch.relu(self.hidden(x * scale))), dim=-1)


def parts(make=Classifier):
    torch.manual_seed(0)
    model = make()
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def tuple_of_five():
    model, optimizer = parts()
    return kl.Setup(model, (X, Y), nn.CrossEntropyLoss(), optimizer=optimizer)


def keyword_inputs():
    model, optimizer = parts()
    return kl.Setup(model, ({"x": X, "scale": 1.0}, Y), F.cross_entropy, optimizer=optimizer)


def fresh_batches():
    model, optimizer = parts()

    def batches(step):
        order = torch.randperm(64, generator=torch.Generator().manual_seed(step))[:32]
        return X[order], Y[order]

    return kl.Setup(model, batches(0), F.cross_entropy, optimizer=optimizer, batches=batches)


def own_loss():
    model, optimizer = parts()
    return kl.Setup(
        model, {"inputs": X, "labels": Y}, optimizer=optimizer,
        compute_loss=lambda model, batch: F.cross_entropy(model(batch["inputs"]), batch["labels"]),
    )  # fmt: skip


def own_loop():
    model, optimizer = parts()

    def train_step(model, inputs, targets, loss_fn, optimizer):
        for parameter in model.parameters():
            parameter.grad = None
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss

    return kl.Setup(model, (X, Y), F.cross_entropy, optimizer=optimizer, train_step=train_step)


def scheduled():
    model, optimizer = parts()
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)
    return kl.Setup(model, (X, Y), F.cross_entropy, optimizer=optimizer, scheduler=scheduler)


def with_scaler():
    model, optimizer = parts()
    return kl.Setup(model, (X, Y), F.cross_entropy, optimizer=optimizer, scaler=torch.amp.GradScaler("cpu"))


def with_dropout():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 5), nn.Softmax(1))
    return kl.Setup(model, (X, Y), F.cross_entropy, optimizer=torch.optim.Adam(model.parameters(), lr=0.01))


def compiled():
    model, optimizer = parts()
    return kl.Setup(torch.compile(model, backend="eager"), (X, Y), F.cross_entropy, optimizer=optimizer)


FORMS = [
    tuple_of_five, keyword_inputs, fresh_batches, own_loss, own_loop, scheduled, with_scaler, with_dropout, compiled
]  # fmt: skip


@pytest.mark.parametrize("build", FORMS, ids=lambda one: one.__name__)
def test_the_edit_reaches_every_form_of_a_set_up(build):
    recording = examine(build(), steps=10)
    root = diagnose(recording).root
    assert root.cause == "output-loss-mismatch"
    (trial,) = prove(root, build, train=train, found=Examined(recording), steps=80, budget_s=60)
    assert trial.helped, trial.note
    assert trial.steps == 80


@pytest.mark.parametrize("build", FORMS, ids=lambda one: one.__name__)
def test_the_untouched_run_is_the_set_up_s_own(build):
    recording = examine(build(), steps=10)
    (trial,) = prove(diagnose(recording).root, build, train=train, found=Examined(recording), steps=12, budget_s=60)
    torch.manual_seed(0)
    setup = build()
    torch.manual_seed(0)
    assert list(trial.losses_before) == pytest.approx(train(setup, 12).losses, rel=1e-6)
