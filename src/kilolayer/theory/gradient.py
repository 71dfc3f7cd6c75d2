"""How large the weight gradients are at step 0, block by block, and how much one draw of the weights scatters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kilolayer.theory.block import BlockSpec, HeadSpec, is_homogeneous
from kilolayer.theory.directions import scatter_below
from kilolayer.theory.forward import compact_block, forward_blocks, run_branch
from kilolayer.theory.hermite import Array
from kilolayer.theory.output import OutputDraws, draw_outputs, normal_quantiles
from kilolayer.theory.pairs import SamplePairs, checked_gram
from kilolayer.theory.size_band import SizeBand
from kilolayer.theory.walk import BackwardWalk, walk_back


@dataclass(frozen=True)
class GradientPrediction(SizeBand):
    """The Frobenius norm of the weight gradient of every matrix of every block, at step 0.

    Attributes:
        log_median: natural logarithm of the median over draws of the weights; NaN where a block has fewer
            matrices than others. Shape: ``(blocks, matrices)``.
        log_std: standard deviation of that logarithm. Shape: ``(blocks, matrices)``.
    """


def predict_weight_grads(
    blocks: Sequence[BlockSpec],
    head: HeadSpec,
    *,
    gram: Array,
    labels: Array,
    batch_size: int | None = None,
    seed: int = 0,
) -> GradientPrediction:
    """Predict the weight gradients of the mean cross-entropy over a batch.

    For a matrix with input x and gradient delta at its output

        ``||dW||^2 = 1/B^2 sum_ij <delta_i, delta_j> <x_i, x_j>``,

    where ``<x_i, x_j>`` is the forward covariance and ``<delta_i, delta_j>`` starts at the logits as
    ``(p_i - y_i).(p_j - y_j)``, averaged over draws of the logits, and is multiplied on its way down: by
    ``fan_in std^2`` per matrix, by the chance that both samples' units are on per ReLU (1 - theta/pi), by
    ``1 / (sigma_i sigma_j)`` per norm; a skip adds its own. At finite width the product scatters log-normally;
    :mod:`kilolayer.theory.backward` says by how much and which corrections the mean needs.

    Keeps about 0.7 MiB per block at 256 samples; time and memory grow with the square of their number. A smaller
    ``gram`` with ``batch_size`` is cheaper, and less exact where the balance of classes matters.

    Args:
        blocks: the blocks in order.
        head: what follows them.
        gram: covariance between samples of one unit of the stream before block 1; see
            :func:`projection_gram`. Shape: ``(samples, samples)``.
        labels: classes of the samples. Shape: ``(samples,)``.
        batch_size: samples in the batch, when ``gram`` covers only a part of it.
        seed: of the draws of the logits.

    Raises:
        ValueError: a ``gram`` that is none, labels that do not fit it or the head, no block, different widths.

    Examples:
        >>> from kilolayer.theory import uniform_gram
        >>> from kilolayer.theory.deep_mlp import deep_mlp_specs
        >>> blocks, head = deep_mlp_specs("deepnorm", 8, width=64)
        >>> prediction = predict_weight_grads(blocks, head, gram=uniform_gram(20), labels=np.arange(20) % 10)
        >>> prediction.median.shape
        (8, 2)

    Reference: Schoenholz et al. 2017, arXiv:1611.01232, section 4; Cho & Saul 2009, eq. 5 to 7; Hanin & Nica
    2018, arXiv:1812.05994, theorem 1; Yang et al. 2019, arXiv:1902.08129, for batch norm.
    """
    matrix = checked_gram(gram)
    classes = _checked_labels(labels, len(matrix), head.num_outputs)
    pairs = SamplePairs(len(matrix), batch_size)
    traces = [compact_block(trace) for trace in forward_blocks(blocks, matrix, pairs)]
    if traces[-1].spec.width != head.width:
        raise ValueError(f"the head expects width {head.width}, the blocks have {traces[-1].spec.width}")
    logits, _, head_trace = run_branch(head.operations, traces[-1].out, pairs)
    outputs = draw_outputs(
        logits,
        classes,
        num_outputs=head.num_outputs,
        size_log_variance=max(head_trace.log_variances[-1], 0.0),
        pairs=pairs,
        seed=seed,
    )
    homogeneous = is_homogeneous(tuple(blocks), head)
    walk = walk_back(traces, head_trace, outputs=outputs, pairs=pairs, homogeneous=homogeneous)
    return _combine(walk, outputs, size_log_variance=head_trace.log_variances[-1], seed=seed)


def _combine(walk: BackwardWalk, outputs: OutputDraws, *, size_log_variance: float, seed: int) -> GradientPrediction:
    """Median and scatter of the log norm from output draws and log-normal walks.

    The direct part of ``ln ||dW||^2`` wanders with the forward pass up to the matrix's input and with the
    backward pass from the head down. Of that walk the part along the size of the last signal goes with the
    output draw made at this size, the rest is independent. The mean stays, so the median lies half the
    variance below.
    """
    sizes = outputs.sizes
    quantiles = normal_quantiles(len(sizes), np.random.default_rng(seed + 1))
    between, own = scatter_below(
        walk.directions,
        [one.directed for one in walk.scatters],
        walk.head_scatter.directed,
        collapses=not walk.is_mixed,
    )
    common, drift, shared = (
        _sum_above([getattr(one, name) for one in walk.scatters], getattr(walk.head_scatter, name))
        for name in ("common", "drift", "shared")
    )
    width = max(len(row) for row in walk.matrices)
    log_median = np.full((len(walk.matrices), width), np.nan)
    log_std = log_median.copy()
    for block, row in enumerate(walk.matrices):
        for place, matrix in enumerate(row):
            backward = between[block] + common[block] + matrix.common + own[block] * matrix.directed
            forward = matrix.log_variance + own[block] * matrix.drawn
            variance = forward + backward
            slope = 0.0
            if size_log_variance > 0:
                known = min(forward, size_log_variance) + shared[block]
                slope = known / math.sqrt(size_log_variance)
            rest = max(variance - slope**2, 0.0)
            logs = matrix.log_direct + slope * sizes + drift[block] - 0.5 * variance
            if matrix.log_aligned is not None:
                logs, rest = np.logaddexp(logs + math.sqrt(rest) * quantiles, matrix.log_aligned), 0.0
            is_zero = not np.isfinite(logs).all()
            log_median[block, place] = -math.inf if is_zero else 0.5 * logs.mean()
            log_std[block, place] = 0.0 if is_zero else 0.5 * math.sqrt(logs.var() + rest)
    return GradientPrediction(log_median, log_std)


def _sum_above(values: list[float], head: float) -> Array:
    """For every block the sum over the blocks above it and the head."""
    return head + np.append(np.cumsum(values[::-1])[::-1][1:], 0.0)


def _checked_labels(labels: Array, num_samples: int, num_outputs: int) -> Array:
    classes = np.asarray(labels)
    if classes.shape != (num_samples,) or not np.issubdtype(classes.dtype, np.integer):
        raise ValueError(
            f"labels must be {num_samples} integers, one per sample of gram, got {classes.dtype} {classes.shape}"
        )
    if classes.min() < 0 or classes.max() >= num_outputs:
        raise ValueError(f"labels run from {classes.min()} to {classes.max()}, the head has {num_outputs} outputs")
    return classes
