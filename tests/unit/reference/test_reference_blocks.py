"""Blocks of the reference: which slot does what, and what is read out."""

from __future__ import annotations

import numpy as np
import pytest

from kilolayer.reference import ChainBlock, FeedForward, Layer, LayerNorm, Linear, ReLU, Residual, RMSNorm


class Scale(Layer):
    """Multiplies by a constant: makes each slot visible in the output."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: np.ndarray) -> np.ndarray:
        return self.factor * x

    def backward(self, grad_out: np.ndarray) -> np.ndarray:
        return self.factor * grad_out


@pytest.mark.parametrize(
    ("parts", "wanted"),
    [
        ({}, 1 + 7),
        ({"pre_norm": Scale(2.0)}, 1 + 2 * 7),
        ({"end_norm": Scale(3.0)}, 1 + 3 * 7),
        ({"post_norm": Scale(5.0)}, 5 * (1 + 7)),
        ({"skip_scale": 11.0}, 11 + 7),
        ({"branch_scale": 13.0}, 1 + 13 * 7),
        (
            {
                "pre_norm": Scale(2.0),
                "end_norm": Scale(3.0),
                "post_norm": Scale(5.0),
                "skip_scale": 11.0,
                "branch_scale": 13.0,
            },
            5 * (11 + 13 * 3 * 2 * 7),
        ),
    ],
    ids=["plain", "pre", "end", "post", "skip-scale", "branch-scale", "all"],
)
def test_each_slot_acts_where_the_formula_says(parts: dict, wanted: float) -> None:
    block = Residual(Scale(7.0), **parts)
    x = np.array([[1.0]])
    assert block.forward(x).item() == wanted
    assert block.backward(x).item() == wanted
    assert block.readout is not None
    assert block.readout.item() == wanted


def test_a_branch_that_keeps_its_output_is_not_disturbed() -> None:
    relu = ReLU()
    block = Residual(relu, branch_scale=0.0)
    block.forward(np.array([[1.0, -1.0]]))
    assert block.backward(np.array([[1.0, 1.0]])).tolist() == [[1.0, 1.0]]
    assert relu.backward(np.array([[1.0, 1.0]])).tolist() == [[1.0, 0.0]]


def test_numpy_scales_do_not_change_the_dtype() -> None:
    block = Residual(FeedForward(2), skip_scale=np.float64(2.0), branch_scale=np.float64(0.5)).astype(np.float32)
    assert block.forward(np.ones((1, 2), np.float32)).dtype == np.float32


def test_slots_name_the_parameters() -> None:
    block = Residual(FeedForward(2), pre_norm=LayerNorm(2), end_norm=RMSNorm(2), post_norm=RMSNorm(2))
    assert [name for name, _ in block.named_parameters()] == [
        "pre_norm.weight",
        "pre_norm.bias",
        "branch.linear1.weight",
        "branch.linear1.bias",
        "branch.linear2.weight",
        "branch.linear2.bias",
        "end_norm.weight",
        "post_norm.weight",
    ]


@pytest.mark.parametrize("norm", [None, Scale(10.0)], ids=["no-norm", "norm"])
def test_a_chain_block_reads_out_its_pre_activation(norm: Layer | None) -> None:
    block = ChainBlock(2, norm=norm)
    linear = block.children["linear"]
    assert isinstance(linear, Linear)
    linear.load_parameters({"weight": np.eye(2), "bias": np.array([0.5, -0.5])})
    factor = 1.0 if norm is None else 10.0
    y = block.forward(np.array([[1.0, -1.0]]))
    assert block.readout is not None
    assert (block.readout / factor).tolist() == [[1.5, -1.5]]
    assert (y / factor).tolist() == [[1.5, 0.0]]
    assert (block.backward(np.array([[1.0, 1.0]])) / factor).tolist() == [[1.0, 0.0]]
