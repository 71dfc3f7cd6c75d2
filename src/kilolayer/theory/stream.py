"""How large the activations are after every block, and how much one draw of the weights scatters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kilolayer.theory.block import BlockSpec, has_norms
from kilolayer.theory.forward import BlockTrace, forward_blocks
from kilolayer.theory.hermite import Array
from kilolayer.theory.pairs import SamplePairs, checked_gram
from kilolayer.theory.size_band import SizeBand


@dataclass(frozen=True)
class StreamPrediction(SizeBand):
    """The standard deviation of the activations over all samples and units, after every block, at step 0.

    Attributes:
        log_median: natural logarithm of the median over draws of the weights. Shape: ``(blocks,)``.
        log_std: standard deviation of that logarithm. Shape: ``(blocks,)``.
        cosine: mean cosine between different samples. Shape: ``(blocks,)``.
        scatters: whether a draw of the weights can land far from the median: no norm anywhere. Otherwise the
            median is the value to expect.
    """

    cosine: Array
    scatters: bool


def predict_stream(blocks: Sequence[BlockSpec], gram: Array, *, batch_size: int | None = None) -> StreamPrediction:
    """Predict the standard deviation of the stream after every block, for a given batch.

    The covariance between samples follows a recursion (arc-cosine kernels for ReLU), which is exact at infinite
    width. At finite width n the second moment of a draw wanders around it: its logarithm gains variance
    ``v`` per block, for samples all alike

        ``5/n`` in a chain of ReLU layers, ``(4 s^2 + 7 s^4) / (n (1 + s^2)^2)`` in a residual block whose branch
        multiplies second moments by s^2,

    less while samples differ (``mean_ij`` over their cosines), and the expected second moment stays on the
    recursion, so that the median lies ``exp(-V/2)`` below for accumulated variance V. A norm on the stream sets
    V to 0; behind pre-norms the stream grows by a constant and V shrinks with it.

    Args:
        blocks: the blocks in order.
        gram: covariance between samples of one unit of the stream before block 1, a random projection of the
            batch; see :func:`projection_gram`. Shape: ``(samples, samples)``.
        batch_size: samples in the batch, when ``gram`` covers only a part of it.

    Raises:
        ValueError: a ``gram`` that is none, no block, or blocks of different widths.

    Examples:
        >>> from kilolayer.theory import uniform_gram
        >>> chain = [BlockSpec(64, (64**-0.5,), has_skip=False, input_activated=i > 0) for i in range(9)]
        >>> prediction = predict_stream(chain, uniform_gram(16))
        >>> bool(prediction.low[8] < 2**-4 < prediction.high[8])
        True

    Reference: Cho & Saul 2009, eq. 6; Hanin & Nica 2018, arXiv:1812.05994, theorem 1; Poole et al. 2016,
    arXiv:1606.05340, eq. 3 and 5.
    """
    matrix = checked_gram(gram)
    pairs = SamplePairs(len(matrix), batch_size)
    rows = [_read(trace, pairs) for trace in forward_blocks(blocks, matrix, pairs)]
    log_median, log_std, cosine = (np.array(column) for column in zip(*rows, strict=True))
    return StreamPrediction(log_median, log_std, cosine, scatters=not has_norms(tuple(blocks)))


def _read(trace: BlockTrace, pairs: SamplePairs) -> tuple[float, float, float]:
    """Logarithm of the median std after one block, its standard deviation, and the mean cosine."""
    signal = trace.out
    log_median = 0.5 * (signal.log_scale - 0.5 * signal.log_variance)
    log_variance = 0.25 * signal.log_variance
    if trace.post is None or trace.spec.norm_kind == "rms":
        # Samples share their mean over the units, which a std leaves out: a chi^2_1 of this mean.
        shared = pairs.batch_mean(signal.gram) / trace.spec.width
        log_median += 0.5 * math.log1p(-min(shared, 0.5))
        log_variance += 0.5 * shared**2
    cosine = pairs.mean_between(pairs.cosines(signal.gram))
    return log_median, math.sqrt(max(log_variance, 0.0)), cosine
