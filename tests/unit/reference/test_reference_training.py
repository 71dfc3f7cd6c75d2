"""Cross-entropy, SGD and one step: values by hand, extreme logits, and what they refuse."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kilolayer.reference import SGD, Linear, sgd_step, softmax_cross_entropy


def test_equal_logits_cost_the_log_of_the_classes() -> None:
    loss, grad = softmax_cross_entropy(np.zeros((2, 10)), np.array([3, 4]))
    assert loss == pytest.approx(math.log(10))
    assert grad[0, 3] == pytest.approx((0.1 - 1) / 2)
    np.testing.assert_allclose(grad.sum(axis=1), 0, atol=1e-15)


def test_huge_logits_do_not_overflow() -> None:
    loss, grad = softmax_cross_entropy(np.array([[1e4, -1e4], [-1e4, 1e4]]), np.array([0, 0]))
    assert loss == pytest.approx(1e4)
    assert grad.tolist() == [[0.0, 0.0], [-0.5, 0.5]]


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_logits_that_are_not_finite_give_such_a_loss_in_silence(bad: float) -> None:
    loss, _ = softmax_cross_entropy(np.full((2, 3), bad), np.array([0, 1]))
    assert math.isnan(loss)


def test_the_gradient_keeps_the_dtype() -> None:
    assert softmax_cross_entropy(np.zeros((2, 3), np.float32), np.array([0, 1]))[1].dtype == np.float32


@pytest.mark.parametrize(
    ("logits", "targets", "message"),
    [
        (np.zeros((2, 3)), np.array([0, 3]), r"labels must lie in 0\.\.2, got 0\.\.3"),
        (np.zeros((2, 3)), np.array([-1, 0]), r"labels must lie in 0\.\.2, got -1\.\.0"),
        (np.zeros((2, 3)), np.array([0]), r"wanted, got \(2, 3\) and \(1,\)"),
        (np.zeros(3), np.array([0, 1, 2]), r"wanted, got \(3,\) and \(3,\)"),
        (np.zeros((0, 3)), np.array([], int), "empty batch"),
    ],
    ids=["too-large", "negative", "count", "dimensions", "empty"],
)
def test_bad_targets(logits: np.ndarray, targets: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        softmax_cross_entropy(logits, targets)


def test_sgd_moves_in_place() -> None:
    linear = Linear(1, 1)
    weight = linear.parameters["weight"]
    linear.forward(np.array([[2.0]]))
    linear.backward(np.array([[3.0]]))
    SGD(linear, lr=0.5).step()
    assert weight.tolist() == [[-3.0]]
    assert linear.gradients["weight"].tolist() == [[6.0]]


def test_a_step_that_overflows_is_silent() -> None:
    linear = Linear(1, 1)
    linear.forward(np.ones((1, 1)))
    linear.backward(np.full((1, 1), 1e308))
    SGD(linear, lr=100.0).step()
    assert np.isneginf(linear.parameters["weight"]).all()


def test_sgd_refuses_a_step_without_gradients_and_a_bad_rate() -> None:
    with pytest.raises(RuntimeError, match="weight has no gradient; run forward and backward before step"):
        SGD(Linear(1, 1), lr=0.1).step()
    for lr in (-0.1, float("nan")):
        with pytest.raises(ValueError, match="lr must be >= 0, got"):
            SGD(Linear(1, 1), lr=lr)


def test_a_step_returns_the_loss_before_it() -> None:
    model = Linear(2, 3)
    x, targets = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([0, 2])
    losses = [sgd_step(model, x, targets, lr=1.0) for _ in range(30)]
    assert losses[0] == pytest.approx(math.log(3))
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.1
