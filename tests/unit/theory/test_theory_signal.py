"""Covariances and their scatter through single operations, against drawn layers."""

import math

import numpy as np
import pytest

from kilolayer.theory.activations import get_activation
from kilolayer.theory.block import Act, Linear, Norm
from kilolayer.theory.forward import run_branch
from kilolayer.theory.pairs import SamplePairs, uniform_gram
from kilolayer.theory.signal import Signal, Singles, apply, start_signal

SAMPLES, WIDTH, DRAWS = 6, 128, 3000


@pytest.fixture(scope="module")
def gram():
    rows = np.random.default_rng(0).normal(size=(SAMPLES, 8))
    rows[1:3] += 2 * rows[0]
    return rows @ rows.T / 8


@pytest.fixture(scope="module")
def pairs():
    return SamplePairs(SAMPLES)


@pytest.fixture(scope="module")
def drawn(gram):
    """Layers of WIDTH Gaussian units with covariance ``gram``; shape (draws, samples, units)."""
    root = np.linalg.cholesky(gram)
    return root @ np.random.default_rng(1).standard_normal((DRAWS, SAMPLES, WIDTH))


def log_second_moments(tensor):
    return np.log((tensor**2).mean(axis=(1, 2)))


def assert_scatter(predicted, logs):
    """A variance of DRAWS values is known to sqrt(2 / DRAWS) = 2.6 %; the prediction is of first order in 1/n."""
    assert predicted == pytest.approx(logs.var(), rel=0.12)


def test_start_is_the_covariance_and_scatters_as_a_wishart_trace(gram, pairs, drawn):
    signal = start_signal(gram, WIDTH, pairs)
    covariance = signal.gram * math.exp(signal.log_scale)
    np.testing.assert_allclose(pairs.unpack(covariance), gram, rtol=1e-12)
    assert_scatter(signal.log_variance, log_second_moments(drawn))


def test_relu_layer(gram, pairs, drawn):
    start = start_signal(gram, WIDTH, pairs)
    signal, step = apply(Act("relu", WIDTH), start, pairs)
    active = np.maximum(drawn, 0)
    measured = (active @ active.transpose(0, 2, 1)).mean(axis=0) / WIDTH
    predicted = pairs.unpack(signal.gram) * math.exp(signal.log_scale)
    # 384,000 units: relative standard error sqrt(5 / 384,000) = 0.0036.
    np.testing.assert_allclose(predicted, measured, atol=0.015 * measured.max())
    assert_scatter(signal.log_variance, log_second_moments(active))
    both_on = ((drawn > 0).astype(float) @ (drawn > 0).transpose(0, 2, 1)).mean(axis=0) / WIDTH
    np.testing.assert_allclose(pairs.unpack(step.derivative), both_on, atol=4 * 0.5 / math.sqrt(DRAWS * WIDTH))


def test_saturating_layer_damps_the_scatter_it_receives(gram, pairs):
    """tanh passes on less than all of a common factor on its input."""
    scale_scatter = 0.04
    incoming = start_signal(gram, WIDTH, pairs)
    wide = Signal(incoming.gram, incoming.log_scale, incoming.log_variance + scale_scatter)
    added = apply(Act("tanh", WIDTH), wide, pairs)[0].log_variance
    plain = apply(Act("tanh", WIDTH), incoming, pairs)[0].log_variance
    rng = np.random.default_rng(3)
    units = np.linalg.cholesky(gram) @ rng.standard_normal((DRAWS, SAMPLES, WIDTH))
    factors = np.exp(0.5 * math.sqrt(scale_scatter) * rng.standard_normal(DRAWS))[:, None, None]
    assert_scatter(added, log_second_moments(np.tanh(factors * units)))
    assert_scatter(plain, log_second_moments(np.tanh(units)))
    assert added - plain < 0.6 * scale_scatter


def test_linear_layer(gram, pairs, drawn):
    std, fan_out = 0.3, 64
    fixed = Signal(pairs.pack(gram) / np.trace(gram) * SAMPLES, math.log(np.trace(gram) / SAMPLES))
    signal, _ = apply(Linear(std, WIDTH, fan_out), fixed, pairs)
    assert signal.log_scale - fixed.log_scale == pytest.approx(math.log(WIDTH * std**2))
    inputs = np.linalg.cholesky(gram) @ np.linalg.qr(np.random.default_rng(4).standard_normal((WIDTH, SAMPLES)))[0].T
    inputs *= math.sqrt(WIDTH)
    weights = np.random.default_rng(5).normal(0, std, (DRAWS, WIDTH, fan_out))
    logs = log_second_moments(inputs @ weights)
    assert_scatter(signal.log_variance, logs)
    # E ln lies half the variance below ln E.
    expected = signal.log_scale - 0.5 * signal.log_variance
    assert abs(expected - logs.mean()) < 4 * logs.std() / math.sqrt(DRAWS) + 1e-3


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_norms_leave_cosines_and_a_fixed_size(kind, gram, pairs):
    signal, step = apply(Norm(kind, scale=0.5), start_signal(gram, WIDTH, pairs), pairs)
    np.testing.assert_allclose(pairs.diagonal(signal.gram), 1)
    assert signal.log_scale == pytest.approx(2 * math.log(0.5))
    assert signal.log_variance == 0
    assert step.slope == 0


def test_a_relu_behind_a_norm_scatters_less(gram, pairs, drawn):
    """On the sphere the sum of squares is fixed: 3/n in place of 5/n for samples all alike."""
    normalized, _ = apply(Norm("rms"), start_signal(gram, WIDTH, pairs), pairs)
    signal, _ = apply(Act("relu", WIDTH), normalized, pairs)
    rows = drawn / np.sqrt((drawn**2).mean(axis=2, keepdims=True))
    assert_scatter(signal.log_variance, log_second_moments(np.maximum(rows, 0)))


def test_zero_weights_leave_nothing(gram, pairs):
    signal, _ = apply(Linear(0.0, WIDTH, WIDTH), start_signal(gram, WIDTH, pairs), pairs)
    assert signal.log_scale == -math.inf
    behind, _ = apply(Act("tanh", WIDTH), signal, pairs)
    assert math.exp(behind.log_scale) < 1e-100


def test_single_precision_shares_what_is_met_again(gram, pairs):
    start, singles = start_signal(gram, WIDTH, pairs), Singles()
    _, step = apply(Act("relu", WIDTH), start, pairs)
    small = singles.step(step)
    assert small.before.gram is singles.signal(start).gram
    assert small.before.gram.dtype == np.float32
    assert small.derivative.dtype == np.float32
    np.testing.assert_allclose(small.derivative, step.derivative, rtol=1e-6)


def test_a_layer_norm_behind_an_activation_removes_the_mean_of_the_units():
    rng = np.random.default_rng(0)
    for activation, cosine in (("relu", 0.0), ("relu", 0.6), ("gelu", 0.6), ("tanh", 0.6)):
        chain = (Linear(0.1, 100, 100), Act(activation, 100), Norm("layer"), Linear(0.1, 100, 100))
        pairs = SamplePairs(2)
        _, _, trace = run_branch(chain, start_signal(uniform_gram(2, cosine=cosine), 100, pairs), pairs)
        before, after = trace.steps[2].before, trace.steps[3].before
        u, v = rng.multivariate_normal([0, 0], [[1, cosine], [cosine, 1]], 400_000).T
        x, y = (get_activation(activation).value(z) for z in (u, v))
        assert math.exp(before.log_scale) == pytest.approx(x.var(), rel=0.01)
        assert after.gram[1] == pytest.approx(np.corrcoef(x, y)[0, 1], abs=0.01)


def test_an_rms_norm_leaves_that_mean():
    chain = (Linear(0.1, 100, 100), Act("relu", 100), Norm("rms"), Linear(0.1, 100, 100))
    pairs = SamplePairs(2)
    _, _, trace = run_branch(chain, start_signal(uniform_gram(2), 100, pairs), pairs)
    assert math.exp(trace.steps[2].before.log_scale) == pytest.approx(0.5)
    assert trace.steps[3].before.gram[1] == pytest.approx(1 / math.pi)
