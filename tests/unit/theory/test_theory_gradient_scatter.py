"""How a branch moves the gradients of two samples together and apart, against drawn branches."""

import math

import numpy as np
import pytest

from kilolayer.theory import BlockSpec, uniform_gram
from kilolayer.theory.directions import collapsed
from kilolayer.theory.forward import forward_blocks
from kilolayer.theory.gradient_scatter import GradientScatter, branch_scatter
from kilolayer.theory.pairs import SamplePairs

WIDTH, BATCH = 48, 4
PAIRS = SamplePairs(2, BATCH)
STDS = (math.sqrt(2 / WIDTH), math.sqrt(1 / WIDTH))


def scatter_of(cosine, activation="relu"):
    block = BlockSpec(WIDTH, STDS, activation=activation)
    return branch_scatter(next(iter(forward_blocks([block], uniform_gram(2, cosine=cosine), PAIRS))), PAIRS)


def test_a_relu_branch_for_samples_alike_and_at_right_angles():
    # 2/n per matrix and 3/n per ReLU; masks at right angles share nothing, and halve a cosine.
    alike, apart = scatter_of(1.0), scatter_of(0.0)
    found = [WIDTH * value for value in (alike.own, alike.between, alike.masks, alike.growth)]
    assert found == pytest.approx([7, 6, 1, 3])
    found = [WIDTH * value for value in (apart.own, apart.between, apart.masks, apart.growth)]
    assert found == pytest.approx([7, 2.5, 0, 2])
    assert (alike.kernel, apart.kernel) == pytest.approx((1, 0.5))
    assert alike.own_masks == apart.own_masks == pytest.approx(1 / WIDTH)


def test_a_linear_branch_has_no_masks():
    linear = scatter_of(0.0, "identity")
    assert (linear.masks, linear.own_masks, linear.kernel) == pytest.approx((0, 0, 1), abs=1e-12)
    assert [WIDTH * value for value in (linear.own, linear.between, linear.growth)] == pytest.approx([4, 4, 2])


def test_samples_alike_collapse_as_products_of_random_matrices_do():
    scatter, branch = GradientScatter(1000, BATCH), scatter_of(1.0)
    for _ in range(20):
        scatter.pass_branch(branch, 1.0)
    expected = collapsed(1 / 1000, 20 * branch.between)
    assert scatter.overlap == pytest.approx(expected, rel=0.05)


def draw_gradients(share, gradient_cosine, draws=8_000):
    """Gradients of two samples at right angles in front of fresh residual blocks. Shape: (draws, 2, width)."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(draws // 1000):
        x = np.zeros((1000, 2, WIDTH))
        x[:, 0, ::2] = x[:, 1, 1::2] = math.sqrt(2)
        grads = rng.normal(size=(1000, 2, WIDTH))
        grads /= np.linalg.norm(grads, axis=-1, keepdims=True)
        grads[:, 1] -= grads[:, 0] * (grads[:, 0] * grads[:, 1]).sum(-1, keepdims=True)
        grads[:, 1] /= np.linalg.norm(grads[:, 1], axis=-1, keepdims=True)
        grads[:, 1] = gradient_cosine * grads[:, 0] + math.sqrt(1 - gradient_cosine**2) * grads[:, 1]
        first = rng.normal(0, STDS[0], (1000, WIDTH, WIDTH))
        last = rng.normal(0, STDS[1], (1000, WIDTH, WIDTH))
        back = ((grads @ last.swapaxes(1, 2)) * (x @ first > 0)) @ first.swapaxes(1, 2)
        found.append(math.sqrt(1 - share) * grads + math.sqrt(share) * back)
    return np.concatenate(found)


@pytest.mark.parametrize("share", [0.2, 0.5, 1.0])
@pytest.mark.parametrize("gradient_cosine", [0.0, 0.6])
def test_squared_cosine_and_scatter_of_drawn_blocks(share, gradient_cosine):
    grads = draw_gradients(share, gradient_cosine)
    sizes = (grads**2).sum(-1)
    overlaps = (grads[:, 0] * grads[:, 1]).sum(-1) ** 2 / sizes.prod(-1)
    scatter = GradientScatter(WIDTH, BATCH)
    scatter.overlap = gradient_cosine**2
    scatter.pass_branch(scatter_of(0.0), share)
    assert scatter.overlap == pytest.approx(overlaps.mean(), rel=0.1, abs=0.004)
    logs = np.log(sizes)
    # Terms beyond 1/n count for a few hundredths of the variance at this width.
    assert scatter.own == pytest.approx(logs.var(axis=0).mean(), rel=0.12)
    assert scatter.between == pytest.approx(np.cov(logs.T)[0, 1], rel=0.2, abs=0.004)


@pytest.mark.parametrize(("own", "between"), [(0.02, 0.01), (0.5, 0.2), (1.0, 1.0)])
def test_variance_of_a_batch_of_log_normal_samples(own, between):
    rng = np.random.default_rng(3)
    shared, alone = rng.normal(size=(200_000, 1)), rng.normal(size=(200_000, BATCH))
    samples = np.exp(math.sqrt(between) * shared + math.sqrt(own - between) * alone)
    means = samples.mean(-1)
    scatter = GradientScatter(WIDTH, BATCH)
    scatter.add(own, between)
    assert scatter.log_variance == pytest.approx(math.log(1 + means.var() / means.mean() ** 2), rel=0.05)


def test_no_scatter_without_branches():
    scatter = GradientScatter(WIDTH, BATCH)
    scatter.pass_branch(scatter_of(0.0), 0.0)
    assert scatter.log_variance == pytest.approx(0, abs=1e-12)
    assert scatter.overlap == pytest.approx(1 / WIDTH)
