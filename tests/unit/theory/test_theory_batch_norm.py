"""Batch norm's kernels, forward and backward, against drawn features."""

import math

import numpy as np
import pytest

from kilolayer.theory.batch_norm import batch_norm_backward, batch_norm_step
from kilolayer.theory.pairs import SamplePairs

SAMPLES, DRAWS = 32, 60_000


@pytest.fixture(scope="module")
def pairs():
    return SamplePairs(SAMPLES)


@pytest.fixture(scope="module")
def gram():
    """A spectrum like that of images: a few strong directions, a long tail, an outlier."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(SAMPLES, 40)) / np.sqrt(np.arange(1, 41))
    rows[0] *= 2
    matrix = rows @ rows.T
    return matrix * SAMPLES / np.trace(matrix)


@pytest.fixture(scope="module")
def features(gram):
    """Centered features, one per row, and each one's variance over the batch."""
    root = np.linalg.cholesky(gram + 1e-9 * np.eye(SAMPLES))
    drawn = np.random.default_rng(1).standard_normal((DRAWS, SAMPLES)) @ root.T
    centered = drawn - drawn.mean(axis=1, keepdims=True)
    return centered, (centered**2).mean(axis=1)


def test_kernel_behind_the_norm(gram, pairs, features):
    step = batch_norm_step(pairs.pack(gram), pairs)
    centered, variances = features
    unit = centered / np.sqrt(variances)[:, None]
    measured = unit.T @ unit / DRAWS
    plain = pairs.centered(gram)
    plain *= SAMPLES / np.trace(plain)
    error = np.abs(pairs.unpack(step.gram) - measured).max()
    assert error < 0.06 * measured.max()
    assert error < 0.4 * np.abs(plain - measured).max()
    assert np.trace(pairs.unpack(step.gram)) == pytest.approx(SAMPLES)


def test_variance_and_its_inverse(gram, pairs, features):
    step = batch_norm_step(pairs.pack(gram), pairs)
    variances = features[1]
    assert step.variance == pytest.approx(variances.mean(), abs=4 * variances.std() / math.sqrt(DRAWS))
    inverse = variances.mean() / variances
    assert step.inverse_moment == pytest.approx(inverse.mean(), rel=0.02)
    assert step.inverse_moment > 1.1


def test_one_random_layer_scatters_the_variances_more(gram, pairs):
    """With few inputs the covariance itself is drawn."""
    fan_in = 16
    rng = np.random.default_rng(2)
    root = np.linalg.cholesky(gram + 1e-9 * np.eye(SAMPLES))
    inverse = []
    for _ in range(300):
        inputs = root @ rng.standard_normal((SAMPLES, fan_in))
        drawn = rng.standard_normal((500, fan_in)) @ inputs.T / math.sqrt(fan_in)
        variances = drawn.var(axis=1)
        inverse.append((variances.mean() / variances).mean())
    step = batch_norm_step(pairs.pack(gram), pairs, fan_in=fan_in)
    assert step.inverse_moment == pytest.approx(np.mean(inverse), rel=0.06)
    assert step.inverse_moment > batch_norm_step(pairs.pack(gram), pairs).inverse_moment + 0.05


def test_features_that_were_normalized_before_are_left_alone(gram, pairs):
    once = batch_norm_step(pairs.pack(gram), pairs)
    again = batch_norm_step(once.gram, pairs, settled=once.gram, settled_share=1.0)
    np.testing.assert_allclose(again.gram, once.gram, atol=1e-5)
    assert again.inverse_moment == pytest.approx(1, abs=1e-4)
    assert again.fresh_share == pytest.approx(0, abs=1e-6)


def test_gradient_in_front_of_the_norm(gram, pairs, features):
    centered, variances = features
    unit = centered / np.sqrt(variances)[:, None]
    rng = np.random.default_rng(3)
    mixing = rng.normal(size=(SAMPLES, SAMPLES)) / math.sqrt(SAMPLES) + np.eye(SAMPLES)
    kernel = mixing @ mixing.T
    grads = rng.standard_normal((DRAWS, SAMPLES)) @ mixing.T
    below = grads - grads.mean(axis=1, keepdims=True) - unit * (grads * unit).mean(axis=1, keepdims=True)
    below /= np.sqrt(variances)[:, None]
    measured = below.T @ below / DRAWS
    step = batch_norm_step(pairs.pack(gram), pairs)
    predicted = pairs.unpack(batch_norm_backward(pairs.pack(kernel), step, pairs))
    assert np.trace(predicted) == pytest.approx(np.trace(measured), rel=0.03)
    assert np.abs(predicted - measured).max() < 0.08 * measured.max()


def test_compact_step_is_single_precision(gram, pairs):
    assert batch_norm_step(pairs.pack(gram), pairs).compact().gram.dtype == np.float32
