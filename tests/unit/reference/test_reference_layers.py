"""Linear, ReLU and Sequential: values worked out by hand, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

from kilolayer.reference import Linear, ReLU, Sequential


def test_linear_by_hand() -> None:
    linear = Linear(2, 2)
    linear.load_parameters({"weight": np.array([[1.0, 2.0], [3.0, 4.0]]), "bias": np.array([10.0, 20.0])})
    assert linear.forward(np.array([[1.0, -1.0]])).tolist() == [[9.0, 19.0]]
    assert linear.backward(np.array([[1.0, 2.0]])).tolist() == [[7.0, 10.0]]
    assert linear.gradients["weight"].tolist() == [[1.0, -1.0], [2.0, -2.0]]
    assert linear.gradients["bias"].tolist() == [1.0, 2.0]


def test_linear_starts_at_zero() -> None:
    assert not Linear(3, 2).forward(np.ones((1, 3))).any()


@pytest.mark.parametrize("shape", [(3,), (2, 4), (2, 3, 3)])
def test_linear_refuses_other_shapes(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"Linear takes arrays of shape \(batch, 3\), got shape"):
        Linear(3, 2).forward(np.ones(shape))


@pytest.mark.parametrize(
    ("sizes", "error", "message"),
    [
        ((0, 2), ValueError, "in_features must be >= 1, got 0"),
        ((2, -1), ValueError, "out_features must be >= 1, got -1"),
        ((2.0, 1), TypeError, r"in_features must be an int, got 2\.0"),
        ((True, 1), TypeError, "in_features must be an int, got True"),
    ],
)
def test_linear_refuses_bad_sizes(sizes: tuple, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Linear(*sizes)


def test_relu_at_zero_passes_no_gradient() -> None:
    relu = ReLU()
    assert relu.forward(np.array([[-2.0, 0.0, 2.0]])).tolist() == [[0.0, 0.0, 2.0]]
    assert relu.backward(np.array([[1.0, 1.0, 1.0]])).tolist() == [[0.0, 0.0, 1.0]]


def test_sequential_applies_in_order_and_back() -> None:
    double, relu = Linear(1, 1), ReLU()
    double.load_parameters({"weight": np.array([[-2.0]]), "bias": np.array([1.0])})
    row = Sequential(double, last=relu)
    assert list(row.children) == ["0", "last"]
    assert row.forward(np.array([[-1.0], [1.0]])).tolist() == [[3.0], [0.0]]
    assert row.backward(np.array([[1.0], [1.0]])).tolist() == [[-2.0], [0.0]]
