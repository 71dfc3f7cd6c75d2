"""Stream and gradient carried through a stack of blocks, with the scatter that adds up on the way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kilolayer.theory.backward import Flow, block_backward, norm_backward
from kilolayer.theory.directions import collapsed
from kilolayer.theory.forward import BlockTrace
from kilolayer.theory.log_scaled import LogScaled
from kilolayer.theory.normed_branch import gradient_excess, has_branch_norm
from kilolayer.theory.pairs import SamplePairs
from kilolayer.theory.scheme_blocks import Bridge
from kilolayer.theory.size_band import SizeBand, from_mean


def stream_band(traces: Sequence[BlockTrace], pairs: SamplePairs) -> SizeBand:
    """The stream in front of the first block and behind every block."""
    signals = [traces[0].stream, *(trace.out for trace in traces)]
    log_variances = [signals[0].log_variance]
    drawn = 0.0
    for trace in traces:
        # Products of random matrices turn all samples into one direction, which covariances at infinite width miss.
        alike = collapsed(_spread_out(trace.spec.width, pairs), drawn)
        fresh = max(trace.fresh_log_variance, alike * trace.unit_log_variance)
        drawn += trace.unit_log_variance
        log_variances.append(0.0 if trace.post is not None else carried(trace) ** 2 * log_variances[-1] + fresh)
    return from_mean(np.array([signal.log_scale for signal in signals]), np.array(log_variances))


def _spread_out(width: int, pairs: SamplePairs) -> float:
    """Mean squared cosine in a batch of random vectors, each with itself included."""
    return 1 / pairs.batch_size + (1 - 1 / pairs.batch_size) / width


@dataclass
class _Walk:
    """The gradient on its way down: what travels, and what has added up since the top.

    ``directed``, ``variance`` and ``drift`` are sums over branches: of :class:`Scatter`'s directed part, of the log
    second moment's variance, and of the logarithm of its mean over the mean-field value. ``memory`` is the weight that
    the branches so far give to a change of the stream below them, see :func:`_stream_variance`.
    """

    flow: Flow
    directed: float = 0.0
    variance: float = 0.0
    drift: float = 0.0
    memory: float = 0.0


def gradient_band(traces: Sequence[BlockTrace], bridges: Sequence[Bridge], pairs: SamplePairs) -> SizeBand:
    """Walk back from independent gradients at the top; log-normal scatter adds up over branches."""
    joins = {bridge.last: bridge for bridge in bridges}
    waiting: dict[int, tuple[Bridge, LogScaled]] = {}
    unit_log_variances = _unit_log_variances(traces)
    walk = _Walk(Flow(LogScaled(np.equal(pairs.rows, pairs.cols).astype(float))))
    rows = [(0.0, 0.0)]
    for index in range(len(traces) - 1, -1, -1):
        trace = traces[index]
        if bridge := joins.get(index):
            waiting[bridge.first] = bridge, _before_post_norm(trace, walk.flow, pairs)
            trace = replace(trace, spec=replace(trace.spec, skip_scale=bridge.skip_scale))
        _pass_branch(walk, trace, pairs, unit_log_variance=unit_log_variances[index])
        if index in waiting:
            joined, around = waiting.pop(index)
            walk.flow = Flow(walk.flow.direct.plus(around.times(joined.weight)))
        rows.append((_log_mean(walk.flow.direct, pairs) + walk.drift, walk.variance))
    log_means, variances = np.array(rows[::-1]).T
    return from_mean(log_means, variances)


def _pass_branch(walk: _Walk, trace: BlockTrace, pairs: SamplePairs, *, unit_log_variance: float) -> None:
    """Take the gradient from behind one block to its front."""
    fraction = collapsed(_spread_out(trace.spec.width, pairs), walk.directed)
    share = 1.0
    skip = _before_post_norm(trace, walk.flow, pairs)
    walk.flow, _, scatter = block_backward(trace, walk.flow, pairs, homogeneous=False)
    if trace.spec.has_skip and trace.spec.skip_scale:
        through_skip = _log_mean(skip, pairs) + 2 * math.log(abs(trace.spec.skip_scale))
        share = max(1 - math.exp(through_skip - _log_mean(walk.flow.direct, pairs)), 0.0)
    walk.directed += scatter.directed
    walk.drift += scatter.drift + share * gradient_excess(trace, unit_log_variance)
    walk.variance += max(fraction * scatter.directed + scatter.common, 0.0)
    walk.variance += _stream_variance(walk, trace, share)


def _stream_variance(walk: _Walk, trace: BlockTrace, share: float) -> float:
    """What the scatter x of the stream's log second moment adds to that of the gradient.

    A branch with a norm has a Jacobian that falls with the size of the stream, so that the gradient's logarithm
    contains ``-share x``. A large stream stays large: the branch above sees :func:`carried` of it, so that the terms of
    all branches above add up to ``memory x``.
    """
    weight = share if has_branch_norm(trace) else 0.0
    memory = carried(trace) * walk.memory
    walk.memory = weight + memory
    return (weight**2 + 2 * weight * memory) * max(trace.stream.log_variance, 0.0)


def carried(trace: BlockTrace) -> float:
    """Part of a change of the stream's log second moment that is left behind the block."""
    if trace.post is not None:
        return 0.0
    slope = math.prod(step.slope for step in trace.branch.steps)
    return 1 - trace.branch_share + trace.branch_share * slope


def _unit_log_variances(traces: Sequence[BlockTrace]) -> list[float]:
    """Variance of ln |x|^2 for one sample of the stream in front of every block; 2/width for Gaussian inputs."""
    now = 2 / traces[0].spec.width
    found = []
    for trace in traces:
        found.append(now)
        now = 0.0 if trace.post is not None else carried(trace) ** 2 * now + trace.unit_log_variance
    return found


def _log_mean(kernel: LogScaled, pairs: SamplePairs) -> float:
    return kernel.log_scale + math.log(float(pairs.diagonal(kernel.values).mean()))


def _before_post_norm(trace: BlockTrace, flow: Flow, pairs: SamplePairs) -> LogScaled:
    return flow.direct if trace.post is None else norm_backward(trace.post, flow, pairs).direct
