"""The norms' Jacobians: formula, Jacobian-vector products and autograd's own agree."""

import math

import pytest
import torch
from torch import nn

from kilolayer.lab.update_norms import expected_gain, measured_gain, measured_jacobian, norm_jacobian, spectrum

WIDTH = 12


def norm_of(kind, seed=0):
    norm = (nn.LayerNorm if kind == "layer" else nn.RMSNorm)(WIDTH, eps=1e-5, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    for parameter in norm.parameters():
        parameter.data += 0.3 * torch.randn(WIDTH, generator=generator, dtype=torch.float64)
    return norm.requires_grad_(False)


def tokens(count=4, scale=3.0):
    return scale * torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.5


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_formula_products_and_autograd_agree(kind):
    norm, x = norm_of(kind), tokens()
    by_autograd = torch.stack([torch.autograd.functional.jacobian(norm, token) for token in x])
    torch.testing.assert_close(norm_jacobian(norm, x), by_autograd, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(measured_jacobian(norm, x[0]), by_autograd[0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_expected_gain_is_the_frobenius_norm(kind):
    norm, x = norm_of(kind), tokens(7)
    jacobians = norm_jacobian(norm, x)
    assert expected_gain(norm, x) == pytest.approx(float((jacobians.square().sum((-1, -2)) / WIDTH).mean().sqrt()))


def test_measured_gain_comes_near_the_expected_one():
    norm, x = norm_of("layer"), tokens(2000)
    assert measured_gain(norm, x, torch.Generator().manual_seed(0)) == pytest.approx(expected_gain(norm, x), rel=0.02)


@pytest.mark.parametrize(("kind", "removed"), [("layer", 2), ("rms", 1)])
def test_a_new_norm_keeps_all_directions_but_two_or_one(kind, removed):
    norm = (nn.LayerNorm if kind == "layer" else nn.RMSNorm)(WIDTH, eps=1e-9, dtype=torch.float64)
    token = tokens(1)[0]
    scale = (token.std(correction=0) if kind == "layer" else token.square().mean().sqrt()).item()
    found = spectrum(norm_jacobian(norm, token))
    assert found.num_removed == removed
    assert found.largest == pytest.approx(1 / scale)
    assert found.median == pytest.approx(1 / scale)
    assert found.smallest == pytest.approx(1 / scale)


def test_gains_spread_the_spectrum():
    norm = nn.LayerNorm(WIDTH, dtype=torch.float64).requires_grad_(False)
    norm.weight.copy_(torch.linspace(0.5, 2.0, WIDTH, dtype=torch.float64))
    found = spectrum(norm_jacobian(norm, tokens(1)[0]))
    assert found.smallest < found.median < found.largest
    assert found.num_removed == 2


def test_a_norm_without_gain():
    norm, x = nn.LayerNorm(WIDTH, elementwise_affine=False, dtype=torch.float64), tokens()
    assert math.isfinite(expected_gain(norm, x))


def test_another_norm_is_refused():
    with pytest.raises(TypeError, match="BatchNorm1d"):
        norm_jacobian(nn.BatchNorm1d(WIDTH), tokens())
