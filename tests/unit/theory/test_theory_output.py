"""Draws of the loss gradient at the logits."""

import math

import numpy as np
import pytest

from kilolayer.theory import uniform_gram
from kilolayer.theory.output import NUM_DRAWS, draw_outputs, normal_quantiles
from kilolayer.theory.pairs import SamplePairs
from kilolayer.theory.signal import Signal

LABELS = np.array([0, 1, 2, 0, 1, 2, 0, 1])
PAIRS = SamplePairs(len(LABELS))


def draws(log_scale, *, cosine=0.3, size_log_variance=0.0, seed=0):
    signal = Signal(PAIRS.pack(uniform_gram(len(LABELS), cosine=cosine)), log_scale)
    return draw_outputs(signal, LABELS, num_outputs=3, size_log_variance=size_log_variance, pairs=PAIRS, seed=seed)


def test_vanishing_logits_leave_the_uniform_error():
    """e = 1/3 - onehot: squared norm 2/3, -1/3 between classes."""
    outputs = draws(-80.0)
    same, other = PAIRS.unpack(outputs.products[5])[0, 3], PAIRS.unpack(outputs.products[5])[0, 1]
    assert same == pytest.approx(2 / 3, rel=1e-6)
    assert other == pytest.approx(-1 / 3, rel=1e-6)
    assert outputs.centered_spread == pytest.approx(0, abs=1e-9)


def test_huge_logits_leave_right_and_wrong_answers():
    """e is 0 for a hit and of squared norm 2 for a miss; a third of the draws hit."""
    outputs = draws(200.0, cosine=0.0)
    energies = np.array([PAIRS.diagonal(row) for row in outputs.products])
    assert set(np.unique(energies.round(4))) <= {0.0, 2.0}
    # 1,024 draws: standard error 0.015 of the share.
    assert (energies == 0).mean() == pytest.approx(1 / 3, abs=0.06)


def test_error_leans_on_the_logits():
    """Larger logits raise the probability of their own class: <e, z> is positive on average."""
    outputs = draws(0.0)
    assert outputs.along.mean() > 3 * outputs.along.mean(axis=1).std() / math.sqrt(NUM_DRAWS)


def test_mean_products_agree_with_quadrature_over_two_classes():
    """Two classes, one logit difference d ~ N(0, 2): E |e|^2 = 2 E sigmoid(-d)^2 with the label's logit ahead by d."""
    labels = np.zeros(2, dtype=int)
    pairs = SamplePairs(2)
    signal = Signal(pairs.pack(uniform_gram(2)), 0.0)
    values = [
        draw_outputs(signal, labels, num_outputs=2, size_log_variance=0.0, pairs=pairs, seed=seed).products
        for seed in range(20)
    ]
    energies = np.concatenate(values)[:, pairs.diagonal_places].ravel()
    d = np.linspace(-12, 12, 4001) * math.sqrt(2)
    weights = np.exp(-(d**2) / 4)
    expected = 2 * (weights / (1 + np.exp(d)) ** 2).sum() / weights.sum()
    assert abs(energies.mean() - expected) < 4 * energies.std() / math.sqrt(len(energies))


def test_scattering_sizes_are_quantiles_and_move_the_errors():
    outputs = draws(0.0, size_log_variance=4.0)
    assert outputs.sizes.mean() == pytest.approx(0, abs=1e-12)
    assert outputs.sizes.std() == pytest.approx(1, abs=0.03)
    energies = np.array([PAIRS.diagonal(row).mean() for row in outputs.products])
    large = outputs.sizes > 1
    assert energies[large].std() > 2 * energies[outputs.sizes < -1].std()
    assert not draws(0.0).sizes.any()


def test_the_seed_decides_the_draws():
    np.testing.assert_array_equal(draws(0.0, seed=3).products, draws(0.0, seed=3).products)
    assert (draws(0.0, seed=3).products != draws(0.0, seed=4).products).any()


def test_quantiles_have_mean_zero_in_any_order():
    values = normal_quantiles(100, np.random.default_rng(0))
    assert values.sum() == pytest.approx(0, abs=1e-12)
    assert (np.diff(values) < 0).any()
