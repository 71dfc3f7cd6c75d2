"""Identities a norm must satisfy: RMSNorm's closed backward, scale invariance, gradients that go as 1/||W||."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kilolayer.reference import NORMS, Linear, RMSNorm, Sequential

EXACT = 1e-12
SCALES = st.floats(0.1, 1e3)
SEEDS = st.integers(0, 2**32 - 1)


def relative_error(got: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.linalg.norm(got - wanted) / np.linalg.norm(wanted))


@settings(max_examples=50)
@given(batch=st.integers(1, 9), width=st.integers(2, 33), seed=SEEDS)
def test_rmsnorm_backward_is_the_closed_formula(batch: int, width: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, grad_out, gain = rng.normal(size=(batch, width)), rng.normal(size=(batch, width)), rng.normal(size=width)
    norm = RMSNorm(width)
    norm.load_parameters({"weight": gain})
    norm.forward(x)
    r = np.sqrt(np.mean(x**2, axis=1, keepdims=True) + norm.eps)
    x_hat, g = x / r, gain * grad_out
    wanted = (g - x_hat * np.mean(g * x_hat, axis=1, keepdims=True)) / r
    # Sizes of two features project almost everything away: the error is held against what is projected.
    assert np.linalg.norm(norm.backward(grad_out) - wanted) <= EXACT * np.linalg.norm(g / r)


@pytest.mark.parametrize("kind", NORMS)
@settings(max_examples=30)
@given(scale=SCALES, seed=SEEDS)
def test_scaling_the_input_changes_nothing(kind: str, scale: float, seed: int) -> None:
    x = np.random.default_rng(seed).normal(size=(8, 16))
    exact, usual = NORMS[kind](16, eps=0.0), NORMS[kind](16)
    assert relative_error(exact.forward(scale * x), exact.forward(x)) <= EXACT
    # With eps the output shrinks by sqrt(v / (v + eps)), v the variance (mean square) that was divided by.
    axis = 0 if kind == "batch" else 1
    variance = np.min(np.mean(x**2, axis) if kind == "rms" else np.var(x, axis)) * min(scale, 1.0) ** 2
    assert relative_error(usual.forward(scale * x), usual.forward(x)) <= usual.eps / variance


@pytest.mark.parametrize("kind", NORMS)
@settings(max_examples=30)
@given(scale=SCALES, seed=SEEDS)
def test_weight_gradient_in_front_of_a_norm_goes_as_one_over_the_weight(kind: str, scale: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, grad_out, weight = rng.normal(size=(8, 6)), rng.normal(size=(8, 16)), rng.normal(size=(16, 6))
    outputs, gradients = [], []
    for factor in (1.0, scale):
        network = Sequential(Linear(6, 16), NORMS[kind](16, eps=0.0))
        dict(network.named_parameters())["0.weight"][...] = factor * weight
        outputs.append(network.forward(x))
        network.backward(grad_out)
        gradients.append(dict(network.named_gradients())["0.weight"])
    assert relative_error(outputs[1], outputs[0]) <= EXACT
    assert relative_error(scale * gradients[1], gradients[0]) <= EXACT


@pytest.mark.parametrize("kind", NORMS)
def test_weight_gradient_is_orthogonal_to_the_weight(kind: str) -> None:
    # Follows from scale invariance (Euler): moving the weight along itself changes nothing.
    rng = np.random.default_rng(0)
    network = Sequential(Linear(6, 16), NORMS[kind](16, eps=0.0))
    weight = dict(network.named_parameters())["0.weight"]
    weight[...] = rng.normal(size=weight.shape)
    network.forward(rng.normal(size=(8, 6)))
    network.backward(rng.normal(size=(8, 16)))
    gradient = dict(network.named_gradients())["0.weight"]
    assert abs(np.sum(gradient * weight)) <= EXACT * np.linalg.norm(gradient) * np.linalg.norm(weight)
