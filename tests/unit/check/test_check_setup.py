"""Set-ups: what they take, how the loss is computed, what is refused."""

import pytest
import torch
from torch import nn

from kilolayer.check import Setup

X, Y = torch.randn(8, 3), torch.randn(8, 2)


class Keyword(nn.Module):
    """Called with keyword inputs, returns its loss as Hugging Face models do."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, inputs, labels):
        class Output:
            loss = (self.linear(inputs) - labels).square().mean()

        return Output()


def test_the_loss_is_computed_in_each_of_four_ways():
    model = nn.Linear(3, 2)
    expected = nn.functional.mse_loss(model(X), Y)
    assert torch.equal(Setup(model, (X, Y), nn.MSELoss()).compute((X, Y)), expected)
    assert torch.equal(Setup(model, ((X,), Y), nn.MSELoss()).compute(((X,), Y)), expected)
    assert torch.equal(Setup(model, ({"input": X}, Y), nn.MSELoss()).compute(({"input": X}, Y)), expected)
    by_hand = Setup(model, X, compute_loss=lambda one, batch: (one(batch) - Y).square().mean())
    assert torch.allclose(by_hand.compute(X), expected)
    keyword = Keyword()
    batch = {"inputs": X, "labels": Y}
    assert Setup(keyword, batch).compute(batch).shape == ()


def test_batches_come_from_the_function_where_there_is_one():
    setup = Setup(nn.Linear(3, 2), (X, Y), nn.MSELoss(), batches=lambda step: (X + step, Y))
    assert torch.equal(setup.batch_at(3)[0], X + 3)
    assert torch.equal(Setup(nn.Linear(3, 2), (X, Y), nn.MSELoss()).batch_at(3)[0], X)


@pytest.mark.parametrize(
    ("arguments", "fields", "error", "message"),
    [
        ((None, (X, Y)), {}, TypeError, "model must be a torch.nn.Module, got NoneType"),
        ((nn.ReLU(), (X, Y)), {}, ValueError, "ReLU has no parameters"),
        ((nn.Linear(3, 2), X, nn.MSELoss()), {}, TypeError, r"batch must be \(inputs, targets\)"),
        (
            (nn.Linear(3, 2), (X[:0], Y[:0]), nn.MSELoss()),
            {},
            ValueError,
            r"empty: it holds a tensor of shape \(0, 3\)",
        ),
        ((nn.Linear(3, 2), (X, Y), 3), {}, TypeError, "loss_fn must be a function, got an int"),
        (
            (nn.Linear(3, 2), (X, Y)),
            {"optimizer": 0.1},
            TypeError,
            "optimizer must be a torch.optim.Optimizer, got float",
        ),
        ((nn.Linear(3, 2), (X, Y)), {"train_step": print}, ValueError, "train_step needs an optimizer"),
    ],
    ids=["no-module", "no-parameters", "no-pair", "empty", "loss", "optimizer", "train-step"],
)
def test_what_is_refused(arguments, fields, error, message):
    with pytest.raises(error, match=message):
        Setup(*arguments, **fields)


@pytest.mark.parametrize(
    ("loss", "error", "message"),
    [
        (lambda out, target: (out - target).square(), ValueError, r"must be a scalar, got a tensor of shape \(8, 2\)"),
        (lambda out, target: 0.5, TypeError, "must be a scalar tensor, got a float"),
        (lambda out, target: torch.tensor(3), ValueError, "floating point"),
    ],
    ids=["shape", "float", "integer"],
)
def test_a_loss_is_one_number(loss, error, message):
    with pytest.raises(error, match=message):
        Setup(nn.Linear(3, 2), (X, Y), loss).compute((X, Y))


def test_an_empty_later_batch_is_refused_too():
    setup = Setup(nn.Linear(3, 2), (X, Y), nn.MSELoss(), batches=lambda step: (X[:0], Y[:0]))
    with pytest.raises(ValueError, match="the batch is empty"):
        setup.batch_at(1)
