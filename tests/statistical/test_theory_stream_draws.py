"""Predicted activations against simulated networks, fixed seeds: medians, bands and their widths."""

import math
from pathlib import Path

import numpy as np
import pytest
from theory_networks import digits_batch, measure

from kilolayer.lab.data import load_data
from kilolayer.theory import deep_mlp_specs, predict_stream, projection_gram

WIDTH, BLOCKS, SAMPLES, SEEDS = 64, 32, 48, 60

NORM_FREE = [("plain", "lecun"), ("plain", "kaiming"), ("residual", "kaiming"), ("residual-scaled", "kaiming")]

MNIST = Path(__file__).parents[3] / "shared" / "data" / "mnist"


def gram_of(inputs):
    return projection_gram(inputs, math.sqrt(2 / inputs.shape[1]))


def stds_of(blocks, head, inputs, labels, seeds=SEEDS):
    return np.array([measure(blocks, head, inputs, labels, np.random.default_rng(seed)).stds for seed in range(seeds)])


@pytest.mark.parametrize(("scheme", "chain_init"), NORM_FREE)
def test_draws_without_norm_scatter_as_predicted(scheme, chain_init):
    blocks, head = deep_mlp_specs(scheme, BLOCKS, width=WIDTH, chain_init=chain_init)
    inputs, labels = digits_batch(SAMPLES, seed=0)
    prediction = predict_stream(blocks, gram_of(inputs))
    assert prediction.scatters
    measured = np.log(stds_of(blocks, head, inputs, labels))
    scores = (measured - prediction.log_median) / prediction.log_std
    # Standard errors over 60 draws: 0.13 of the mean score, 0.09 of its spread.
    assert np.abs(scores.mean(axis=0)).max() < 0.5
    assert scores.std(axis=0).min() > 0.7
    assert scores.std(axis=0).max() < 1.3
    assert (np.abs(scores) < 1.96).mean() > 0.92


@pytest.mark.parametrize("norm", ["layer", "rms", "batch"])
@pytest.mark.parametrize(
    "scheme",
    [
        "norm-only",
        "post-ln",
        "pre-ln",
        "pre-ln-scaled",
        "deepnorm",
        "sandwich-ln",
        "sub-ln",
        "keel",
        "layernorm-scaling",
    ],
)
def test_draws_with_norms_keep_to_the_value_predicted(scheme, norm):
    blocks, head = deep_mlp_specs(scheme, 24, width=WIDTH, norm=norm)
    inputs, labels = digits_batch(SAMPLES, seed=1)
    prediction = predict_stream(blocks, gram_of(inputs))
    assert not prediction.scatters
    errors = np.log(stds_of(blocks, head, inputs, labels, seeds=8)) - prediction.log_median
    assert np.abs(np.median(errors, axis=0)).max() < math.log(1.1)
    # The band is narrow here; one draw in 3,000 leaves 3.6 deviations.
    assert (np.abs(errors) < 0.005 + 3.6 * prediction.log_std).all()


def test_pre_norm_stream_grows_linearly_in_variance():
    blocks, _ = deep_mlp_specs("pre-ln", 64, width=256)
    inputs, _ = digits_batch(SAMPLES, seed=2)
    variances = predict_stream(blocks, gram_of(inputs)).median ** 2
    # Two matrices and a ReLU of gain 1 behind a norm add 1 per block.
    np.testing.assert_allclose(np.diff(variances), 1.0, rtol=0.02)


def test_a_part_of_the_batch_predicts_nearly_what_the_whole_does():
    blocks, _ = deep_mlp_specs("plain", 32, width=WIDTH)
    inputs, _ = digits_batch(256, seed=3)
    whole = predict_stream(blocks, gram_of(inputs))
    part = predict_stream(blocks, gram_of(inputs[:64]), batch_size=256)
    np.testing.assert_allclose(part.median, whole.median, rtol=0.1)
    np.testing.assert_allclose(part.log_std, whole.log_std, rtol=0.1)


@pytest.mark.skipif(not MNIST.is_dir(), reason="needs MNIST beside the repository")
def test_bands_hold_plain_chains_on_mnist_at_full_size():
    images = load_data(str(MNIST)).x_train[:256]
    blocks, _ = deep_mlp_specs("plain", 64, width=256)
    prediction = predict_stream(blocks, gram_of(images))
    inside = np.array([plain_stds(images, seed) for seed in range(30)])
    inside = (inside >= prediction.low) & (inside <= prediction.high)
    for block in (1, 8, 16, 32, 64):
        # 23 of 30 or fewer happen once in 1,600 times at 95 %.
        assert inside[:, block - 1].sum() > 23, block
    assert inside.mean() > 0.9


def plain_stds(images, seed, width=256, num_blocks=64):
    """A Kaiming chain in single precision, read before each ReLU."""
    rng = np.random.default_rng(seed)
    h = images.astype(np.float32) @ rng.standard_normal((784, width), dtype=np.float32) * math.sqrt(2 / 784)
    stds = []
    for index in range(num_blocks):
        weight = rng.standard_normal((width, width), dtype=np.float32) * math.sqrt(2 / width)
        h = (np.maximum(h, 0) if index else h) @ weight
        stds.append(float(h.std()))
    return stds
