"""Blocks in the forward pass: sums, shares, scatter."""

import math

import numpy as np
import pytest

from kilolayer.theory import BlockSpec, uniform_gram
from kilolayer.theory.forward import compact_block, forward_blocks
from kilolayer.theory.pairs import SamplePairs

N = 128
PAIRS = SamplePairs(4)


def residual(**kwargs):
    return BlockSpec(N, (math.sqrt(2 / N), math.sqrt(1 / N)), **kwargs)


def run(blocks, cosine=1.0):
    return list(forward_blocks(blocks, uniform_gram(4, cosine=cosine), PAIRS))


def test_scatter_per_relu_layer_is_five_over_n():
    chain = [BlockSpec(N, (math.sqrt(2 / N),), has_skip=False, input_activated=index > 0) for index in range(4)]
    traces = run(chain)
    variances = [trace.out.log_variance for trace in traces]
    np.testing.assert_allclose(np.diff(variances), 5 / N, rtol=1e-9)
    # Input projection and the first block's matrix, before any ReLU.
    assert variances[0] == pytest.approx(4 / N)
    assert traces[1].unit_log_variance == pytest.approx(5 / N)


@pytest.mark.parametrize("skip_scale", [1.0, 2.0])
def test_scatter_per_residual_block(skip_scale):
    """(4 a^2 s^2 + 7 s^4) / (n (a^2 + s^2)^2) with branch gain s^2 = 1."""
    trace = run([residual(skip_scale=skip_scale)])[0]
    a2 = skip_scale**2
    expected = (4 * a2 + 7) / (N * (a2 + 1) ** 2)
    assert trace.fresh_log_variance == pytest.approx(expected)
    assert trace.unit_log_variance == pytest.approx(expected)
    assert trace.branch_share == pytest.approx(1 / (a2 + 1))


def test_samples_that_differ_scatter_less():
    alike, apart = run([residual()])[0], run([residual()], cosine=0.0)[0]
    assert apart.fresh_log_variance < 0.6 * alike.fresh_log_variance


def test_branch_scale_enters_squared():
    trace = run([residual(branch_scale=0.5)])[0]
    assert trace.branch_share == pytest.approx(0.25 / 1.25)
    assert trace.total.log_scale == pytest.approx(math.log(1.25))


def test_a_zero_branch_leaves_the_stream():
    trace = run([residual(branch_scale=0.0)])[0]
    assert trace.branch_share == 0
    np.testing.assert_allclose(trace.total.gram, trace.stream.gram)
    assert trace.fresh_log_variance == 0


def test_pre_norm_uncouples_the_branch_from_the_streams_scatter():
    plain, pre = run([residual()])[0], run([residual(norm_placement="pre")])[0]
    stream = 2 / N
    assert plain.out.log_variance == pytest.approx(stream + plain.fresh_log_variance)
    assert pre.out.log_variance == pytest.approx(stream / 4 + pre.fresh_log_variance)


def test_post_norm_ends_all_scatter():
    trace = run([residual(norm_placement="post")])[0]
    assert trace.out.log_variance == 0
    assert trace.out.log_scale == 0
    assert trace.total.log_variance > 0


@pytest.mark.parametrize("skip_scale", [0.5, 1.0])
def test_scatter_agrees_with_drawn_blocks(skip_scale):
    """One residual block on a fixed input, 2,000 draws."""
    width, draws = 32, 2000
    spec = BlockSpec(width, (math.sqrt(2 / width), math.sqrt(1 / width)), skip_scale=skip_scale)
    trace = next(iter(forward_blocks([spec], uniform_gram(2, cosine=1.0), SamplePairs(2))))
    rng = np.random.default_rng(0)
    x = np.ones(width)
    first = rng.normal(0, math.sqrt(2 / width), (draws, width, width))
    last = rng.normal(0, math.sqrt(1 / width), (draws, width, width))
    hidden = np.maximum(first @ x, 0)
    y = skip_scale * x + (last @ hidden[:, :, None])[:, :, 0]
    second_moments = (y**2).mean(axis=1)
    assert second_moments.mean() == pytest.approx(skip_scale**2 + 1, rel=4 * 0.4 / math.sqrt(draws))
    relative = second_moments.var() / second_moments.mean() ** 2
    # Heavy tails: a relative variance of 2,000 draws is known to about 5 %.
    assert relative == pytest.approx(trace.unit_log_variance, rel=0.15)


def test_compact_traces_are_single_precision():
    trace = compact_block(run([residual(norm_placement="post")])[0])
    assert {trace.stream.gram.dtype, trace.total.gram.dtype, trace.out.gram.dtype} == {np.dtype(np.float32)}
    assert trace.post.before.gram.dtype == np.float32


def test_bad_stacks_are_refused():
    with pytest.raises(ValueError, match="blocks is empty"):
        run([])
    with pytest.raises(ValueError, match=r"width \[128, 256\]"):
        run([residual(), BlockSpec(256, (0.1,))])
