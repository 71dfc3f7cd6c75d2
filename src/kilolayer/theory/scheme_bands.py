"""Stream and gradient carried through a stack of blocks, with the scatter that adds up on the way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kilolayer.theory.backward import Flow, block_backward, norm_backward
from kilolayer.theory.forward import BlockTrace
from kilolayer.theory.gradient_scatter import GradientScatter, branch_scatter
from kilolayer.theory.log_scaled import LogScaled
from kilolayer.theory.normed_branch import gradient_excess, has_branch_norm
from kilolayer.theory.pairs import SamplePairs
from kilolayer.theory.scheme_blocks import Bridge
from kilolayer.theory.size_band import SizeBand, from_mean
from kilolayer.theory.stream_norm import Removable, StreamState
from kilolayer.theory.stream_scatter import between_samples, carried


def stream_band(traces: Sequence[BlockTrace], log_variances: Sequence[float]) -> SizeBand:
    """The stream in front of the first block and behind every block, with its scatter."""
    signals = [traces[0].stream, *(trace.out for trace in traces)]
    return from_mean(np.array([signal.log_scale for signal in signals]), np.array(log_variances))


@dataclass
class _Walk:
    """The gradient on its way down: what travels, and what has added up since the top.

    ``scatter`` and ``drift`` add up over branches: the log second moment's variance, and the logarithm of its mean over
    the mean-field value. ``memory`` is the weight that the branches so far give to a change of the stream
    below them, see :func:`_pass_sizes`.
    """

    flow: Flow
    scatter: GradientScatter
    removable: Removable = field(default_factory=Removable)
    drift: float = 0.0
    memory: float = 0.0


def gradient_band(
    traces: Sequence[BlockTrace], bridges: Sequence[Bridge], *, states: Sequence[StreamState], pairs: SamplePairs
) -> SizeBand:
    """Walk back from independent gradients at the top; log-normal scatter adds up over branches."""
    joins = {bridge.last: bridge for bridge in bridges}
    waiting: dict[int, tuple[Bridge, LogScaled]] = {}
    start = Flow(LogScaled(np.equal(pairs.rows, pairs.cols).astype(float)))
    walk = _Walk(start, GradientScatter(traces[0].spec.width, pairs.batch_size))
    rows = [(0.0, 0.0)]
    for index in range(len(traces) - 1, -1, -1):
        trace = traces[index]
        if bridge := joins.get(index):
            waiting[bridge.first] = bridge, _before_post_norm(trace, walk.flow, pairs)
            trace = replace(trace, spec=replace(trace.spec, skip_scale=bridge.skip_scale))
        _pass_block(walk, trace, states[index], pairs)
        if index in waiting:
            joined, around = waiting.pop(index)
            walk.flow = Flow(walk.flow.direct.plus(around.times(joined.weight)))
        rows.append((_log_mean(walk.flow.direct, pairs) + walk.drift, walk.scatter.log_variance))
    log_means, variances = np.array(rows[::-1]).T
    return from_mean(log_means, variances)


def _pass_block(walk: _Walk, trace: BlockTrace, state: StreamState, pairs: SamplePairs) -> None:
    """Take the gradient from behind one block to its front."""
    skip = _before_post_norm(trace, walk.flow, pairs)
    walk.flow = block_backward(trace, walk.flow, pairs, homogeneous=False)[0]
    share = 1.0
    if trace.spec.has_skip and trace.spec.skip_scale:
        through_skip = _log_mean(skip, pairs) + 2 * math.log(abs(trace.spec.skip_scale))
        share = max(1 - math.exp(through_skip - _log_mean(walk.flow.direct, pairs)), 0.0)
    branch = branch_scatter(trace, pairs)
    walk.scatter.pass_branch(branch, share)
    if trace.post is not None:
        overlap = share * trace.branch_share
        walk.drift += walk.removable.pass_norm(trace, state, overlap=overlap * branch.own_masks)
        _scatter_by_norm(walk, trace, state, pairs)
        walk.scatter.add(-2 * overlap * branch.own_masks, -2 * overlap * branch.masks)
    walk.removable.pass_sum(trace, share)
    walk.drift += share * gradient_excess(trace, state.log_variance)
    _pass_sizes(walk, trace, state, share)


def _scatter_by_norm(walk: _Walk, trace: BlockTrace, state: StreamState, pairs: SamplePairs) -> None:
    """A norm behind the sum divides by a size that scatters, from sample to sample and for all alike."""
    if trace.spec.norm_kind == "batch":
        return
    fresh = between_samples(trace.fresh_log_variance, trace.unit_log_variance, pairs)
    kept = carried(trace) ** 2
    walk.scatter.add(trace.unit_log_variance + kept * state.log_variance, fresh + kept * state.log_covariance)


def _pass_sizes(walk: _Walk, trace: BlockTrace, state: StreamState, share: float) -> None:
    """What the scatter x of the stream's log second moment adds to the gradient's.

    A branch with a norm has a Jacobian that falls with the size of the stream, so that the gradient's logarithm
    contains ``-share x``. A large stream stays large: the branch above sees :func:`carried` of it, so that the terms of
    all branches above add up to ``memory x``. Variances gain ``share^2 + 2 share memory`` times those of x. The mean,
    of a product of factors that move together, gains ``share memory`` times the variance of one sample;
    :func:`gradient_excess` has the term of the branch alone. A batch norm divides by what samples do not share, which
    hardly scatters.
    """
    weight = share if has_branch_norm(trace) and trace.spec.norm_kind != "batch" else 0.0
    memory = 0.0 if trace.post is not None else carried(trace) * walk.memory
    walk.memory = weight + memory
    twice = weight**2 + 2 * weight * memory
    walk.scatter.add(twice * state.log_variance, twice * state.log_covariance)
    walk.drift += weight * memory * state.log_variance


def _log_mean(kernel: LogScaled, pairs: SamplePairs) -> float:
    return kernel.log_scale + math.log(float(pairs.diagonal(kernel.values).mean()))


def _before_post_norm(trace: BlockTrace, flow: Flow, pairs: SamplePairs) -> LogScaled:
    return flow.direct if trace.post is None else norm_backward(trace.post, flow, pairs).direct
