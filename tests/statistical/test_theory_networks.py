"""The simulated networks themselves: their hand-written gradients against finite differences."""

import numpy as np
import pytest
from theory_networks import Run, cross_entropy_grad

from kilolayer.theory.block import BlockSpec


@pytest.mark.parametrize("placement", ["none", "pre", "inner", "end", "post", "pre+end"])
@pytest.mark.parametrize("norm_kind", ["layer", "rms", "batch"])
def test_branch_backward_agrees_with_finite_differences(placement, norm_kind):
    block = BlockSpec(6, (0.5, 0.4), norm_placement=placement, norm_kind=norm_kind)
    rng = np.random.default_rng(0)
    inputs, cotangent = rng.normal(size=(2, 5, 6))
    run = Run(block.branch, inputs, np.random.default_rng(1))
    grad = run.backward(cotangent)
    step = 1e-6
    for row, unit in [(0, 0), (3, 5)]:
        shifted = [inputs.copy(), inputs.copy()]
        shifted[0][row, unit] += step
        shifted[1][row, unit] -= step
        high, low = ((Run(block.branch, one, np.random.default_rng(1)).out * cotangent).sum() for one in shifted)
        assert (high - low) / (2 * step) == pytest.approx(grad[row, unit], rel=1e-6, abs=1e-9)


def test_cross_entropy_grad_agrees_with_finite_differences():
    rng = np.random.default_rng(2)
    logits, labels = rng.normal(size=(4, 3)), np.array([0, 2, 1, 1])

    def loss(values):
        log_sums = np.log(np.exp(values).sum(axis=1))
        return (log_sums - values[np.arange(4), labels]).mean()

    shift = np.zeros((4, 3))
    shift[2, 1] = 1e-6
    numeric = (loss(logits + shift) - loss(logits - shift)) / 2e-6
    assert numeric == pytest.approx(cross_entropy_grad(logits, labels)[2, 1], rel=1e-7)
