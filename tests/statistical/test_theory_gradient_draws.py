"""Predicted weight gradients against simulated networks, fixed seeds: medians and scatter along the depth."""

import math

import numpy as np
import pytest
from theory_networks import digits_batch, measure

from kilolayer.theory import deep_mlp_specs, predict_weight_grads, projection_gram

WIDTH, BLOCKS, SAMPLES, SEEDS = 64, 24, 48, 80

WIRINGS = [
    ("plain", "lecun"),
    ("plain", "kaiming"),
    ("residual", "kaiming"),
    ("residual-scaled", "kaiming"),
    ("norm-only", "kaiming"),
    ("post-ln", "kaiming"),
    ("pre-ln", "kaiming"),
    ("pre-ln-scaled", "kaiming"),
    ("deepnorm", "kaiming"),
    ("sandwich-ln", "kaiming"),
]
NUM_NORM_FREE = 4


def errors_of(scheme, chain_init, *, norm="layer", num_blocks=BLOCKS, seeds=SEEDS, width=WIDTH, samples=SAMPLES):
    """``ln(measured / predicted)``, shape (seeds, blocks, matrices), and the prediction."""
    blocks, head = deep_mlp_specs(scheme, num_blocks, width=width, norm=norm, chain_init=chain_init)
    inputs, labels = digits_batch(samples, seed=0)
    gram = projection_gram(inputs, math.sqrt(2 / inputs.shape[1]))
    prediction = predict_weight_grads(blocks, head, gram=gram, labels=labels)
    grads = [measure(blocks, head, inputs, labels, np.random.default_rng(seed)).grads for seed in range(seeds)]
    return np.log(grads) - prediction.log_median, prediction


@pytest.mark.parametrize(
    ("scheme", "chain_init", "norm"),
    [(*wiring, "layer") for wiring in WIRINGS] + [(*wiring, "rms") for wiring in WIRINGS[NUM_NORM_FREE:]],
)
def test_medians_and_scatter_agree_with_draws(scheme, chain_init, norm):
    errors, prediction = errors_of(scheme, chain_init, norm=norm)
    spread = errors.std(axis=0)
    # The median of 80 draws is known to 1.25 / sqrt(80) = 0.14 of their spread.
    tolerance = math.log(1.15) + 3 * 0.14 * spread
    assert (np.abs(np.median(errors, axis=0)) < tolerance).all()
    ratio = spread / prediction.log_std
    assert ratio.max() < 1.5
    assert ratio.min() > 0.5
    assert (np.abs(errors) < 1.96 * prediction.log_std).mean() > 0.9


@pytest.mark.parametrize("scheme", ["norm-only", "post-ln", "pre-ln-scaled", "deepnorm"])
def test_medians_agree_behind_batch_norms(scheme):
    errors, _ = errors_of(scheme, "kaiming", norm="batch", seeds=20, width=128, samples=128)
    assert np.abs(np.median(errors, axis=0)).max() < math.log(1.15)


def test_batch_norms_without_skips_make_gradients_grow_by_the_known_rate():
    blocks, head = deep_mlp_specs("norm-only", 48, width=256, norm="batch")
    inputs, labels = digits_batch(256, seed=0)
    gram = projection_gram(inputs, math.sqrt(2 / inputs.shape[1]))
    log_median = predict_weight_grads(blocks, head, gram=gram, labels=labels).log_median[:, 0]
    rates = np.exp(-np.diff(log_median))[4:-4]
    # sqrt(pi / (pi - 1)) = 1.211 at infinite width and batch.
    assert rates.min() > 1.17
    assert rates.max() < 1.25


def test_forward_backward_alignment_is_needed_without_norms():
    """Without it, plain chains' gradients come out at half their size in the middle blocks."""
    errors, prediction = errors_of("plain", "kaiming", num_blocks=48, seeds=60)
    middle = np.median(errors[:, 12:24, 0], axis=0)
    standard_error = 1.25 * errors[:, 12:24, 0].std(axis=0) / math.sqrt(60)
    assert (np.abs(middle) < 0.1 + 3 * standard_error).all()
    assert prediction.log_std[12:24].min() > 0.5
