"""Predicted streams: closed forms, ranges, and what is refused."""

import math

import numpy as np
import pytest

from kilolayer.theory import BlockSpec, deep_mlp_specs, predict_stream, uniform_gram

N = 128


def test_a_naive_chain_halves_its_variance_per_block():
    blocks, _ = deep_mlp_specs("plain", 64, width=N, chain_init="lecun")
    prediction = predict_stream(blocks, uniform_gram(8, second_moment=2.0))
    scatter = 4 * prediction.log_std**2
    means = 2 * prediction.log_median + scatter / 2
    np.testing.assert_allclose(np.diff(means), -math.log(2), atol=0.005)
    assert prediction.low[-1] < 2.0**-32 < prediction.high[-1]


def test_scatter_of_a_deep_chain_approaches_five_over_n_per_block():
    blocks, _ = deep_mlp_specs("plain", 256, width=N)
    scatter = 4 * predict_stream(blocks, uniform_gram(8)).log_std ** 2
    assert scatter[-1] - scatter[-2] == pytest.approx(5 / N, rel=0.03)
    assert scatter[0] < 1.5 / N


def test_residual_variance_doubles_per_block():
    blocks, _ = deep_mlp_specs("residual", 64, width=N)
    prediction = predict_stream(blocks, uniform_gram(8))
    means = 2 * prediction.log_median + 2 * prediction.log_std**2
    np.testing.assert_allclose(np.diff(means), math.log(2), atol=0.01)


@pytest.mark.parametrize("scheme", ["norm-only", "post-ln", "deepnorm"])
def test_norms_on_the_stream_give_exactly_one(scheme):
    blocks, _ = deep_mlp_specs(scheme, 12, width=N)
    prediction = predict_stream(blocks, uniform_gram(8, second_moment=7.0))
    np.testing.assert_allclose(prediction.median, 1, rtol=1e-12)
    np.testing.assert_array_equal(prediction.low, prediction.high)
    assert not prediction.scatters


def test_rms_norm_leaves_the_shared_mean_in():
    """Second moment 1 with a mean over the units of variance 1/n: a std just below 1."""
    blocks, _ = deep_mlp_specs("norm-only", 40, width=N, norm="rms")
    prediction = predict_stream(blocks, uniform_gram(8))
    assert 1 - 1 / N < prediction.median[-1] < 1
    assert 0 < prediction.log_std[-1] < 1 / N


def test_pre_norm_variance_grows_by_the_branch():
    blocks, _ = deep_mlp_specs("pre-ln-scaled", 32, width=1024)
    variances = predict_stream(blocks, uniform_gram(8)).median ** 2
    np.testing.assert_allclose(np.diff(variances), 1 / 64, rtol=0.02)


def test_cosines_follow_the_relu_map():
    blocks, _ = deep_mlp_specs("plain", 3, width=N)
    cosine = predict_stream(blocks, uniform_gram(8, cosine=0.0)).cosine
    assert cosine[0] == pytest.approx(0, abs=1e-12)
    assert cosine[1] == pytest.approx(1 / math.pi)


def test_thousands_of_blocks_stay_in_range():
    blocks, _ = deep_mlp_specs("residual", 3000, width=N)
    prediction = predict_stream(blocks, uniform_gram(4))
    assert np.isfinite(prediction.log_median).all()
    assert prediction.log_median[-1] > 900
    assert prediction.high[-1] == math.inf
    shrinking, _ = deep_mlp_specs("plain", 3000, width=N, chain_init="lecun")
    assert predict_stream(shrinking, uniform_gram(4)).median[-1] == 0


@pytest.mark.parametrize("activation", ["tanh", "gelu", "sigmoid", "silu"])
def test_other_activations_reach_their_fixed_point_or_decay(activation):
    blocks = [
        BlockSpec(N, (N**-0.5,), activation=activation, has_skip=False, input_activated=index > 0)
        for index in range(30)
    ]
    prediction = predict_stream(blocks, uniform_gram(8))
    assert np.isfinite(prediction.log_median).all()
    assert prediction.median[-1] < 1
    # Scatter of a saturating chain does not run away: an early difference in scale is forgotten.
    if activation in ("tanh", "sigmoid"):
        assert prediction.log_std[-1] < 3 * prediction.log_std[2]


def test_bands_enclose_the_median():
    blocks, _ = deep_mlp_specs("residual", 8, width=N)
    prediction = predict_stream(blocks, uniform_gram(8))
    assert (prediction.low < prediction.median).all()
    assert (prediction.median < prediction.high).all()
    ratio = np.log(prediction.high / prediction.low)
    np.testing.assert_allclose(ratio, 2 * 1.959964 * prediction.log_std)


def test_bad_input_is_refused():
    blocks, _ = deep_mlp_specs("residual", 2, width=N)
    with pytest.raises(ValueError, match="square matrix"):
        predict_stream(blocks, np.ones(3))
    with pytest.raises(ValueError, match="blocks is empty"):
        predict_stream([], uniform_gram(4))
    with pytest.raises(ValueError, match="batch_size 2 is smaller"):
        predict_stream(blocks, uniform_gram(4), batch_size=2)
