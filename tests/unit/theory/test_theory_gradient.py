"""Predicted weight gradients: exact cases, ranges, invariances, and what is refused."""

import math
import tracemalloc

import numpy as np
import pytest

from kilolayer.theory import BlockSpec, HeadSpec, deep_mlp_specs, predict_weight_grads, projection_gram, uniform_gram
from kilolayer.theory.walk import CHUNK

N, SAMPLES = 64, 40


@pytest.fixture(scope="module")
def batch():
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(SAMPLES, 20))
    return projection_gram(inputs, math.sqrt(2 / 20)), rng.integers(0, 10, SAMPLES)


def predict(scheme, num_blocks, batch, **kwargs):
    blocks, head = deep_mlp_specs(scheme, num_blocks, width=N, **kwargs)
    return predict_weight_grads(blocks, head, gram=batch[0], labels=batch[1])


def test_one_linear_block_against_drawn_networks(batch):
    """A chain of one matrix and a small head, so that p is 1/10: everything is known."""
    gram, labels = batch
    blocks, head = [BlockSpec(N, (N**-0.5,), has_skip=False)], HeadSpec(N, 10, 1e-4)
    prediction = predict_weight_grads(blocks, head, gram=gram, labels=labels)
    rng = np.random.default_rng(1)
    errors = (0.1 - np.eye(10)[labels]) / SAMPLES
    root = np.linalg.cholesky(gram + 1e-9 * np.eye(SAMPLES))
    logs = []
    for _ in range(2000):
        stream = root @ rng.standard_normal((SAMPLES, N))
        logs.append(math.log(np.linalg.norm(stream.T @ errors @ rng.normal(0, 1e-4, (10, N)))))
    assert abs(prediction.log_median[0, 0] - np.mean(logs)) < 0.02
    assert prediction.log_std[0, 0] == pytest.approx(np.std(logs), rel=0.25)


def test_the_size_of_the_loss_gradient_carries_through(batch):
    """With tiny logits e is fixed, so gradients are proportional to the head's weights."""
    gram, labels = batch
    blocks, _ = deep_mlp_specs("post-ln", 4, width=N)
    small, smaller = (
        predict_weight_grads(blocks, HeadSpec(N, 10, std), gram=gram, labels=labels) for std in (1e-4, 1e-6)
    )
    np.testing.assert_allclose(small.log_median - smaller.log_median, math.log(100), atol=1e-4)


def test_gradients_decay_towards_the_input_of_a_naive_chain_only_as_samples_decorrelate(batch):
    """Forward loss and backward loss of size cancel: every block sees both in full."""
    log_median = predict("plain", 32, batch, chain_init="lecun").log_median[:, 0]
    assert log_median.max() - log_median.min() < 1.5
    assert log_median[0] < 0.5 * -32 * math.log(2) + 3


def test_pre_norm_gradients_are_even_and_post_norms_are_not(batch):
    even = predict("pre-ln-scaled", 64, batch).log_median
    assert (even.max(axis=0) - even.min(axis=0) < math.log(1.5)).all()
    uneven = predict("post-ln", 64, batch).log_median
    assert (uneven[-1] - uneven[0] > math.log(1.4)).all()


def test_deeper_chains_scatter_more_and_norms_do_not_end_that(batch):
    shallow, deep = predict("plain", 8, batch).log_std, predict("plain", 64, batch).log_std
    assert deep.min() > shallow.max()
    assert predict("norm-only", 64, batch).log_std[0, 0] > 2 * predict("pre-ln-scaled", 64, batch).log_std[0, 0]


def test_batch_norms_without_skip_make_gradients_grow(batch):
    log_median = predict("norm-only", 24, batch, norm="batch").log_median[:, 0]
    assert (np.diff(log_median)[2:-1] < math.log(1 / 1.15)).all()


def test_post_norm_after_a_zero_branch_is_no_obstacle(batch):
    block = BlockSpec(N, (math.sqrt(2 / N), 0.0), norm_placement="post")
    prediction = predict_weight_grads([block] * 3, HeadSpec(N, 10, 0.1), gram=batch[0], labels=batch[1])
    np.testing.assert_array_equal(prediction.median[:, 0], 0)
    np.testing.assert_allclose(prediction.median[:, 1], prediction.median[0, 1], rtol=0.02)


def test_blocks_with_different_numbers_of_matrices(batch):
    blocks = [BlockSpec(N, (N**-0.5,), has_skip=False), BlockSpec(N, (N**-0.5, N**-0.5), hidden_width=2 * N)]
    prediction = predict_weight_grads(blocks, HeadSpec(N, 10, 0.1), gram=batch[0], labels=batch[1])
    assert prediction.median.shape == (2, 2)
    assert np.isnan(prediction.median[0, 1])
    assert np.isfinite(prediction.median[1]).all()


def test_chunks_do_not_show(batch, monkeypatch):
    whole = predict("residual", 2 * CHUNK // 3, batch)
    monkeypatch.setattr("kilolayer.theory.walk.CHUNK", 1)
    np.testing.assert_allclose(predict("residual", 2 * CHUNK // 3, batch).log_median, whole.log_median, rtol=1e-5)


def test_the_seed_only_adds_noise_and_repeats(batch):
    blocks, head = deep_mlp_specs("pre-ln", 8, width=N)
    first, again, other = (
        predict_weight_grads(blocks, head, gram=batch[0], labels=batch[1], seed=seed) for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first.log_median, again.log_median)
    assert 0 < np.abs(first.log_median - other.log_median).max() < 0.1


def test_a_thousand_blocks_without_norm_stay_in_range(batch):
    prediction = predict("residual", 1000, batch)
    assert np.isfinite(prediction.log_median).all()
    assert prediction.log_median.min() > 300


def test_a_part_of_the_batch_stands_for_the_whole():
    rng = np.random.default_rng(3)
    inputs, labels = rng.normal(size=(128, 20)), np.arange(128) % 10
    gram = projection_gram(inputs, math.sqrt(2 / 20))
    blocks, head = deep_mlp_specs("pre-ln", 8, width=N)
    whole = predict_weight_grads(blocks, head, gram=gram, labels=labels)
    part = predict_weight_grads(blocks, head, gram=gram[:60, :60], labels=labels[:60], batch_size=128)
    np.testing.assert_allclose(part.log_median, whole.log_median, atol=0.25)


def test_memory_per_block_is_what_the_docstring_says():
    rng = np.random.default_rng(4)
    gram = projection_gram(rng.normal(size=(256, 30)), math.sqrt(2 / 30))
    labels = rng.integers(0, 10, 256)
    peaks = []
    for num_blocks in (10, 40):
        blocks, head = deep_mlp_specs("residual", num_blocks, width=N)
        tracemalloc.start()
        predict_weight_grads(blocks, head, gram=gram, labels=labels)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert (peaks[1] - peaks[0]) / 30 < 0.75 * 2**20


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.zeros(3, dtype=int), r"4 integers, one per sample of gram, got int64 \(3,\)"),
        (np.zeros(4), "got float64"),
        (np.array([0, 1, 2, 10]), "labels run from 0 to 10, the head has 10 outputs"),
    ],
)
def test_bad_labels_are_refused(labels, message):
    blocks, head = deep_mlp_specs("residual", 2, width=N)
    with pytest.raises(ValueError, match=message):
        predict_weight_grads(blocks, head, gram=uniform_gram(4), labels=labels)


def test_a_head_of_another_width_is_refused():
    blocks, _ = deep_mlp_specs("residual", 2, width=N)
    with pytest.raises(ValueError, match="head expects width 32, the blocks have 64"):
        predict_weight_grads(blocks, HeadSpec(32, 10, 0.1), gram=uniform_gram(4), labels=np.zeros(4, dtype=int))
