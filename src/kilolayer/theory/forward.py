"""Blocks in the forward pass: branch, sum, norm; and how much one draw of the weights scatters."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kilolayer.theory.block import BlockSpec, Linear, Norm, Operation
from kilolayer.theory.hermite import Array
from kilolayer.theory.pairs import SamplePairs
from kilolayer.theory.signal import Signal, Singles, Step, apply, apply_norm, start_signal, without_unit_mean


@dataclass(frozen=True)
class BranchTrace:
    """A sequence of operations as the backward pass needs it.

    Attributes:
        steps: one per operation.
        log_variances: variance of the log second moment at each operation's input, the stream's own included.
        unit_log_variance: variance of ln |row|^2 behind the branch for one sample, its input given.
    """

    steps: tuple[Step, ...]
    log_variances: tuple[float, ...]
    unit_log_variance: float


@dataclass(frozen=True)
class BlockTrace:
    """A block as the backward pass needs it.

    Attributes:
        spec: what the block is.
        stream: the signal that entered the block.
        branch: the branch's operations.
        total: the signal after the sum, before the post-norm.
        out: the signal that leaves the block.
        branch_share: share of the branch in the second moment of the sum; 1 without skip.
        fresh_log_variance: scatter of the sum's log second moment that this block adds.
        unit_log_variance: the same for one sample.
        post: the norm after the sum, None for none.
    """

    spec: BlockSpec
    stream: Signal
    branch: BranchTrace
    total: Signal
    out: Signal
    branch_share: float
    fresh_log_variance: float
    unit_log_variance: float
    post: Step | None


def forward_blocks(blocks: Sequence[BlockSpec], gram: Array, pairs: SamplePairs) -> Iterator[BlockTrace]:
    """The trace of every block in turn, from the covariance ``gram`` of the stream before block 1.

    Raises:
        ValueError: no block, or blocks of different width.
    """
    if not blocks:
        raise ValueError("blocks is empty; give at least one BlockSpec")
    if len(widths := {block.width for block in blocks}) > 1:
        raise ValueError(f"the stream has one width, got blocks of width {sorted(widths)}")
    stream, settled = start_signal(gram, blocks[0].width, pairs), False
    for block in blocks:
        trace = _forward_block(block, stream, pairs, settled=settled)
        yield trace
        stream = trace.out
        settled = block.has_post_norm and block.norm_kind == "batch"


def run_branch(
    operations: Sequence[Operation], stream: Signal, pairs: SamplePairs
) -> tuple[Signal, float, BranchTrace]:
    """The signal behind the operations, its slope with respect to the stream, and the trace.

    The returned signal's ``log_variance`` is what the operations add, the stream given.
    """
    signal, slope = replace(stream, log_variance=0.0), 1.0
    steps: list[Step] = []
    log_variances: list[float] = []
    unit = 0.0
    fan_in: int | None = None
    for operation in operations:
        log_variances.append(slope**2 * stream.log_variance + signal.log_variance)
        if steps and isinstance(operation, Norm) and operation.kind == "layer":
            signal = without_unit_mean(signal, steps[-1], pairs)
        signal, step = apply(operation, signal, pairs, fan_in=fan_in)
        fan_in = operation.fan_in if isinstance(operation, Linear) else None
        slope *= step.slope
        unit = step.slope**2 * unit + step.unit_log_variance
        steps.append(step)
    return signal, slope, BranchTrace(tuple(steps), tuple(log_variances), unit)


def _forward_block(block: BlockSpec, stream: Signal, pairs: SamplePairs, *, settled: bool) -> BlockTrace:
    branch_out, slope, branch = run_branch(block.branch, stream, pairs)
    total, share, fresh, unit = _add(block, stream, branch_out, slope=slope, pairs=pairs)
    unit += share**2 * branch.unit_log_variance
    out, post = total, None
    if block.has_post_norm:
        out, post = apply_norm(
            Norm(block.norm_kind),
            total,
            pairs,
            fan_in=next(op.fan_in for op in reversed(block.branch) if isinstance(op, Linear)),
            settled=stream.gram if settled and block.has_skip else None,
            settled_share=1 - share,
        )
    return BlockTrace(block, stream, branch, total, out, share, fresh, unit, post)


def _add(
    block: BlockSpec, stream: Signal, branch_out: Signal, *, slope: float, pairs: SamplePairs
) -> tuple[Signal, float, float, float]:
    """``skip_scale x + branch_scale f``, the branch's share r, and the scatter the sum adds (batch, one sample).

    Branch and skip are independent Gaussians, so second moments add and ``2 x.f`` scatters by
    ``4 r (1 - r) mean_ij cos^x_ij cos^f_ij / n``.
    """
    from_branch = branch_out.log_scale + _log_square(block.branch_scale)
    from_skip = stream.log_scale + _log_square(block.skip_scale) if block.has_skip else -math.inf
    log_scale = float(np.logaddexp(from_branch, from_skip))
    share = math.exp(from_branch - log_scale) if log_scale > -math.inf else 1.0
    gram = (1 - share) * stream.gram + share * branch_out.gram
    cross = 4 * share * (1 - share) / block.width
    fresh = share**2 * branch_out.log_variance + cross * pairs.batch_mean(stream.gram * branch_out.gram)
    carried = (1 - share + share * slope) ** 2 * stream.log_variance
    return Signal(gram, log_scale, carried + fresh), share, fresh, cross


def _log_square(factor: float) -> float:
    return 2 * math.log(abs(factor)) if factor else -math.inf


def compact_block(trace: BlockTrace) -> BlockTrace:
    """The trace in single precision: a deep network keeps four or five matrices per block."""
    singles = Singles()
    return replace(
        trace,
        stream=singles.signal(trace.stream),
        branch=replace(trace.branch, steps=tuple(singles.step(step) for step in trace.branch.steps)),
        total=singles.signal(trace.total),
        out=singles.signal(trace.out),
        post=None if trace.post is None else singles.step(trace.post),
    )
