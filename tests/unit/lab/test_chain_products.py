"""Spectra of products of Jacobians against products written out, and the effective rank against draws."""

import math

import numpy as np
import pytest
import torch

from kilolayer.lab.chain_products import (
    CONDITION,
    GRADIENT_DRAWS,
    LARGEST,
    MEDIAN,
    PRODUCTS,
    RANK,
    SCATTER,
    cases,
    describe,
    effective_rank,
    jacobian_spectra,
)
from kilolayer.lab.chain_run import ChainRun, Key
from kilolayer.lab.scheme_stream import build_stack
from kilolayer.theory import NetworkSpec

RUN = ChainRun(part="products", num_blocks=4, width=12)


@pytest.mark.parametrize("scheme", ["plain", "post-ln", "deepnorm", "pre-ln"])
def test_spectra_are_those_of_autograds_jacobian(scheme):
    network = NetworkSpec(scheme=scheme, num_layers=3, width=8)
    found = jacobian_spectra(network, [1, 3], seed=3)
    generator = torch.Generator().manual_seed(3)
    stack = build_stack(network, generator=generator)
    sample = torch.randn(8, dtype=torch.float64, generator=generator)
    for values, depth in zip(found, (1, 3), strict=True):
        jacobian = torch.autograd.functional.jacobian(lambda x, depth=depth: stack[:depth](x[None])[0], sample)
        np.testing.assert_allclose(values, torch.linalg.svdvals(jacobian).numpy(), rtol=1e-8, atol=1e-12)


def test_alike_singular_values_have_full_rank():
    found = describe(np.full(6, 2.5))
    assert found == pytest.approx({LARGEST: 1.0, MEDIAN: 1.0, CONDITION: 1.0, RANK: 1.0})


def test_one_direction_left():
    found = describe(np.array([3.0, 0.0, 0.0, 0.0]))
    assert found[RANK] == pytest.approx(1 / 4)
    assert found[LARGEST] == pytest.approx(2.0)
    assert found[MEDIAN] == found[CONDITION] == math.inf


def test_a_spectrum_by_hand():
    found = describe(np.array([4.0, 2.0, 1.0]))
    assert found[MEDIAN] == pytest.approx(2.0)
    assert found[CONDITION] == pytest.approx(4.0)
    assert found[RANK] == pytest.approx(21**2 / (256 + 16 + 1) / 3)
    assert found[LARGEST] == pytest.approx(4 / math.sqrt(7))


@pytest.mark.parametrize("is_relu", [False, True])
def test_effective_rank_is_a_ratio_of_means_over_draws(is_relu):
    width, depth = 16, 3
    draws = np.random.default_rng(0)
    products = np.broadcast_to(np.eye(width), (5_000, width, width))
    for _ in range(depth):
        weights = draws.normal(0, math.sqrt((2 if is_relu else 1) / width), (5_000, width, width))
        products = weights @ products
        if is_relu:
            products = products * (draws.random((5_000, width, 1)) < 0.5)
    squares = products @ products.transpose(0, 2, 1)
    traces = np.trace(squares, axis1=1, axis2=2)
    measured = (traces**2).mean() / (squares**2).sum((1, 2)).mean()
    assert effective_rank(width, depth, is_relu=is_relu) == pytest.approx(measured, rel=0.05)


def test_a_wide_linear_chain_keeps_one_direction_in_depth_plus_one():
    assert effective_rank(10**6, 9, is_relu=False) == pytest.approx(10**5, rel=1e-3)


def test_figures_and_expectations_have_the_same_keys():
    figures, expected = PRODUCTS.measure(RUN), PRODUCTS.predict(RUN)
    assert set(expected) <= set(figures)
    assert {key.case for key in figures} == set(cases(RUN))
    assert {key.at for key in figures} == {1, 4}
    assert {key.quantity for key in figures} == {SCATTER, LARGEST, MEDIAN, CONDITION, RANK}


def test_orthogonal_matrices_keep_every_direction():
    figures = PRODUCTS.measure(RUN)
    for quantity in (LARGEST, MEDIAN, CONDITION, RANK):
        assert figures[Key("linear, orthogonal", quantity, 4)] == pytest.approx(1.0)
    assert figures[Key("linear, orthogonal", SCATTER, 4)] < 1e-5


def test_the_band_of_a_scatter_is_that_of_its_sample():
    expected = PRODUCTS.predict(RUN)[Key("relu", SCATTER, 4)]
    samples = np.random.default_rng(1).normal(0, expected.value, (4000, GRADIENT_DRAWS)).std(1, ddof=1)
    inside = ((expected.low <= samples) & (samples <= expected.high)).mean()
    assert inside == pytest.approx(0.95, abs=0.02)
