"""Fixed points, chi_1 and cosines of infinitely wide chains."""

import math

import numpy as np
import pytest

from kilolayer.theory import (
    chi_one,
    correlation_length,
    cosine_map,
    next_variance,
    relu_cosine_after,
    trainable_depth,
    variance_fixed_point,
)


def test_fixed_point_reproduces_itself():
    variance = variance_fixed_point("tanh", weight_variance=2.0, bias_variance=0.1)
    again = next_variance(variance, "tanh", weight_variance=2.0, bias_variance=0.1)
    assert again == pytest.approx(variance, rel=1e-9)


def test_signals_die_or_explode_off_relu_criticality():
    assert variance_fixed_point("relu", weight_variance=1.0) == 0
    assert variance_fixed_point("relu", weight_variance=2.5) == math.inf
    assert variance_fixed_point("relu", weight_variance=2.0, start=3.0) == 3.0


def test_tanh_is_critical_at_unit_weight_variance_and_vanishing_signal():
    assert chi_one("tanh", weight_variance=1.0, variance=1e-8) == pytest.approx(1, abs=1e-7)
    ordered = variance_fixed_point("tanh", weight_variance=0.8, bias_variance=0.05)
    chaotic = variance_fixed_point("tanh", weight_variance=3.0)
    assert chi_one("tanh", weight_variance=0.8, variance=ordered) < 1
    assert chi_one("tanh", weight_variance=3.0, variance=chaotic) > 1


def test_a_sigmoid_chain_loses_three_quarters_of_its_gradient_per_layer():
    """Xavier-initialized: between 0.23 and 0.24 in RMS, as real nets show."""
    variance = variance_fixed_point("sigmoid", weight_variance=1.0)
    assert math.sqrt(chi_one("sigmoid", weight_variance=1.0, variance=variance)) == pytest.approx(0.236, abs=0.002)


def test_correlation_length_and_trainable_depth():
    assert correlation_length(1.0) == math.inf
    assert correlation_length(0.5) == pytest.approx(1 / math.log(2))
    assert correlation_length(2.0) == pytest.approx(1 / math.log(2))
    assert trainable_depth(0.9) == pytest.approx(6 / math.log(1 / 0.9))
    with pytest.raises(ValueError, match="must be positive, got 0"):
        correlation_length(0)


def test_cosine_map_agrees_with_a_wide_layer():
    rng = np.random.default_rng(0)
    cosine, width = 0.3, 200_000
    u, noise = rng.standard_normal((2, width))
    v = cosine * u + math.sqrt(1 - cosine**2) * noise
    ratios = 2 * np.maximum(u, 0) * np.maximum(v, 0)
    assert abs(cosine_map(cosine) - ratios.mean()) < 4 * ratios.std() / math.sqrt(width)


def test_cosine_map_keeps_identical_samples_identical():
    assert cosine_map(1.0) == pytest.approx(1, abs=1e-15)
    assert cosine_map(1.0, "tanh", variance=2.0) == pytest.approx(1, abs=1e-15)


def test_cosines_of_relu_chains_tend_to_one_as_the_inverse_square_of_depth():
    num_layers = 4000
    gap = 1 - relu_cosine_after(0.0, num_layers)
    assert gap * num_layers**2 == pytest.approx(9 * math.pi**2 / 2, rel=0.02)
    assert relu_cosine_after(0.4, 0) == 0.4


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match=r"in \[-1, 1\], got 1.5"):
        cosine_map(1.5)
    with pytest.raises(ValueError, match="got -1"):
        relu_cosine_after(0.0, -1)
