"""Gaussian averages against closed forms and brute-force simulation."""

import math

import numpy as np
import pytest

from kilolayer.theory.hermite import gaussian_mean, pair_mean


@pytest.mark.parametrize("variance", [0.1, 1.0, 30.0])
def test_even_moments_are_exact(variance):
    assert gaussian_mean(lambda x: x**2, variance) == pytest.approx(variance, rel=1e-12)
    assert gaussian_mean(lambda x: x**6, variance) == pytest.approx(15 * variance**3, rel=1e-10)


def test_a_steep_function_is_resolved():
    """E[1 - tanh^2] at a large variance comes from a narrow peak: the integral of 1 - tanh^2 is 2."""
    variance = 400.0
    assert gaussian_mean(lambda x: 1 - np.tanh(x) ** 2, variance) == pytest.approx(
        2 / math.sqrt(2 * math.pi * variance), rel=5e-3
    )


def one_pair(function, variance_i, variance_j, cosine):
    first, second, both = np.array([0]), np.array([1]), np.array([variance_i, variance_j])
    return float(pair_mean(function, both, rows=first, cols=second, cosine=np.array([cosine]))[0])


def test_a_product_of_linear_functions_is_the_covariance():
    assert one_pair(lambda x: x, 2.0, 0.5, -0.3) == pytest.approx(-0.3, rel=1e-12)


def test_a_product_of_squares_follows_isserlis():
    expected = 2.0 * 0.5 * (1 + 2 * 0.3**2)
    assert one_pair(lambda x: x**2, 2.0, 0.5, 0.3) == pytest.approx(expected, rel=1e-12)


def test_cosine_one_is_exact_however_slowly_the_series_converges():
    alone = gaussian_mean(lambda x: np.tanh(x) ** 2, 50.0)
    assert one_pair(np.tanh, 50.0, 50.0, 1.0) == pytest.approx(alone, rel=1e-12)


@pytest.mark.parametrize("cosine", [-0.8, 0.0, 0.6, 0.95])
def test_pair_mean_agrees_with_simulation(cosine):
    rng = np.random.default_rng(0)
    first, second = rng.standard_normal((2, 400_000))
    u = math.sqrt(1.7) * first
    v = math.sqrt(0.4) * (cosine * first + math.sqrt(1 - cosine**2) * second)
    products = np.tanh(u) * np.tanh(v)
    standard_error = products.std() / math.sqrt(len(products))
    assert abs(one_pair(np.tanh, 1.7, 0.4, cosine) - products.mean()) < 4 * standard_error
