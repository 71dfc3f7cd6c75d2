"""Moments and kernels of every activation against simulation; closed forms against known values."""

import math

import numpy as np
import pytest

from kilolayer.theory import ACTIVATIONS, get_activation

DRAWS = 200_000


@pytest.fixture(scope="module")
def normals():
    return np.random.default_rng(0).standard_normal((2, DRAWS))


def assert_mean(value, samples):
    """The value lies within 4 standard errors of the samples' mean."""
    assert abs(value - samples.mean()) < 4 * samples.std() / math.sqrt(len(samples)) + 1e-12


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda one: one.name)
@pytest.mark.parametrize("variance", [0.3, 4.0])
def test_moments_of_one_sample(activation, variance, normals):
    x = math.sqrt(variance) * normals[0]
    value, slope = activation.value(x), activation.derivative(x)
    assert_mean(activation.second_moment(variance), value**2)
    assert_mean(activation.derivative_second_moment(variance), slope**2)
    fourth = (activation.squared_spread(variance) + 1) * activation.second_moment(variance) ** 2
    assert_mean(fourth, value**4)
    fourth = (activation.derivative_spread(variance) + 1) * activation.derivative_second_moment(variance) ** 2
    assert_mean(fourth, slope**4)


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda one: one.name)
@pytest.mark.parametrize("cosine", [-0.5, 0.7, 0.98])
def test_kernels_of_two_samples(activation, cosine, normals):
    variances = np.array([0.5, 2.0])
    u = math.sqrt(variances[0]) * normals[0]
    v = math.sqrt(variances[1]) * (cosine * normals[0] + math.sqrt(1 - cosine**2) * normals[1])
    kernels = activation.kernels(variances, np.array([cosine]), rows=np.array([0]), cols=np.array([1]))
    assert_mean(kernels.value[0], activation.value(u) * activation.value(v))
    assert_mean(kernels.derivative[0], activation.derivative(u) * activation.derivative(v))
    assert_mean(kernels.square[0], activation.value(u) ** 2 * activation.value(v) ** 2)


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda one: one.name)
def test_derivative_is_that_of_the_value(activation):
    x = np.array([-2.3, -0.4, 0.2, 1.9])
    numeric = (activation.value(x + 1e-6) - activation.value(x - 1e-6)) / 2e-6
    np.testing.assert_allclose(activation.derivative(x), numeric, atol=1e-8)


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda one: one.name)
def test_log_slope_is_the_exponent_of_the_second_moment(activation):
    ratio = activation.second_moment(1.1) / activation.second_moment(1 / 1.1)
    assert activation.log_slope(1.0) == pytest.approx(math.log(ratio) / math.log(1.21), rel=2e-3)
    assert (activation.log_slope(1.0) == 1) == activation.is_homogeneous


def test_relu_kernels_at_known_angles():
    """Cosine 0: 1/(2 pi), 1/4, 1/4; cosine 1: 1/2, 1/2, 3/2; cosine -1: all zero."""
    first = np.zeros(3, dtype=int)
    kernels = get_activation("relu").kernels(np.ones(1), np.array([0.0, 1.0, -1.0]), rows=first, cols=first)
    np.testing.assert_allclose(kernels.value, [1 / (2 * math.pi), 0.5, 0], atol=1e-15)
    np.testing.assert_allclose(kernels.derivative, [0.25, 0.5, 0], atol=1e-15)
    np.testing.assert_allclose(kernels.square, [0.25, 1.5, 0], atol=1e-15)


def test_relu_spreads():
    relu = get_activation("relu")
    assert relu.squared_spread(3.0) == pytest.approx(5)
    assert relu.derivative_spread(3.0) == 1


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'sigmoid'"):
        get_activation("sigmiod")


@pytest.mark.parametrize(
    ("typed", "meant"), [("ReLU", "relu"), ("swish", "silu"), ("linear", "identity"), ("gleu", "gelu")]
)
def test_the_activation_somebody_meant(typed, meant):
    with pytest.raises(ValueError, match=rf"unknown activation '{typed}'; did you mean '{meant}'\?"):
        get_activation(typed)
