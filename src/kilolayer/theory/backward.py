"""Gradient kernels on their way from the logits to the input.

Two kernels travel together. With ``e_i`` the gradient of the loss at the logits of sample i,

    ``<delta_i, delta_j> = direct_ij e_i.e_j + aligned_ij a_i a_j``,   ``a_i = e_i.z_i``

for the gradients ``delta`` at any tensor. ``direct`` is the mean-field kernel: weights met on the way back count as
independent of those met on the way forward (Schoenholz et al. 2017, arXiv:1611.01232, section 4). That misses one
direction, the forward signal itself. In a network without norms Euler's theorem for homogeneous functions says
``<delta_i, h_i> = e_i.z_i`` at every tensor h: e depends on the logits z, so this is no small random number, and
W^T hands it on to every layer below. ``aligned`` carries it, ``direct`` loses what it held by chance. Behind a
norm on the stream the component is 0, and ``direct`` loses it all the same. Both are corrections of order 1/width
per layer that add up over depth: for 64 ReLU blocks of width 128 they double the gradient in the middle.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from kilolayer.theory.batch_norm import batch_norm_backward
from kilolayer.theory.block import Act, Linear, Norm
from kilolayer.theory.forward import BlockTrace, BranchTrace
from kilolayer.theory.log_scaled import LogScaled
from kilolayer.theory.pairs import SamplePairs
from kilolayer.theory.signal import Signal, Step


@dataclass(frozen=True)
class Flow:
    """The two kernels at some tensor; ``aligned`` is None where the network is not homogeneous."""

    direct: LogScaled
    aligned: LogScaled | None = None


@dataclass(frozen=True)
class WeightKernel:
    """``||dW||^2 = sum_ij direct_ij e_i.e_j + aligned_ij a_i a_j`` for one matrix, and how it scatters.

    Attributes:
        direct, aligned: the two kernels.
        log_variance: scatter of the log second moment of the matrix's input.
        drawn: variance per direction that comes of drawing the units of the matrix's input.
        directed: variance per direction of the gradient that the rest of the block added; see :class:`Scatter`.
        common: variance common to all directions.
    """

    direct: LogScaled
    aligned: LogScaled | None
    log_variance: float
    drawn: float
    directed: float
    common: float


@dataclass(frozen=True)
class Scatter:
    """What one block adds to the scatter of the log gradient on the way back.

    Attributes:
        directed: variance where the gradient keeps to one direction; the average over R^-1 directions scatters
            by R times that.
        common: variance common to all directions: masks, sizes of the samples.
        drift: logarithm of the mean over the mean-field value.
        shared: covariance with the forward scatter, through units that are off both ways.
    """

    directed: float
    common: float
    drift: float
    shared: float


@dataclass(frozen=True)
class BranchBackward:
    """What comes of carrying a flow back through a branch.

    Attributes:
        flow: the kernels in front of the branch.
        kernels: one per matrix, first matrix first.
        directed, common: see :class:`Scatter`, as if the branch were all there is.
    """

    flow: Flow
    kernels: list[WeightKernel]
    directed: float
    common: float


def branch_backward(
    branch: BranchTrace, flow: Flow, pairs: SamplePairs, *, share: float, is_constrained: bool
) -> BranchBackward:
    """Carry the kernels behind a branch to its front.

    ``share`` r is the part of the signal behind the sum that comes from this branch, so that
    ``<delta, f> = r a``. ``is_constrained`` says that the component along the signal is known.
    """
    kernels: list[WeightKernel] = []
    directed = common = 0.0
    pending: LogScaled | None = None
    for index in range(len(branch.steps) - 1, -1, -1):
        step = branch.steps[index]
        operation = step.operation
        if isinstance(operation, Linear):
            behind = branch.steps[index - 1] if index else None
            spread = behind.spread if behind else 0.0
            drawn = 2 * (1 + spread) / operation.fan_in
            direct, aligned = _weight_kernels(step, flow)
            kernels.append(WeightKernel(direct, aligned, branch.log_variances[index], drawn, directed, common))
            lost = share * (1 + spread) / operation.fan_in if is_constrained else 0.0
            flow, pending = _linear_backward(step, flow, pairs, share=share, lost=lost)
            directed += 2 / operation.fan_in
            if behind is None or not isinstance(behind.operation, Act):
                flow = _with_aligned(flow, pending)
        elif isinstance(operation, Act):
            # Units that are off have no part in the signal: its direction passes the mask whole.
            flow = _with_aligned(_activation_backward(step, flow), pending)
            directed += 2 * step.spread / operation.width
            common += step.spread * _mask_overlap(step, pairs) / operation.width
        else:
            flow = norm_backward(step, flow, pairs)
    return BranchBackward(flow, kernels[::-1], directed, common)


def block_backward(
    trace: BlockTrace, flow: Flow, pairs: SamplePairs, *, homogeneous: bool
) -> tuple[Flow, list[WeightKernel], Scatter]:
    """From the gradient kernel behind a block to the one in front of it, with the kernels of its matrices."""
    spec, share = trace.spec, trace.branch_share
    if trace.post is not None:
        flow = norm_backward(trace.post, flow, pairs)
    is_constrained = homogeneous or (trace.post is not None and spec.norm_kind != "batch")
    branch = branch_backward(
        trace.branch, _scaled(flow, spec.branch_scale**2), pairs, share=share, is_constrained=is_constrained
    )
    below = branch.flow
    if spec.has_skip:
        skip = _scaled(flow, spec.skip_scale**2)
        lost = 2 * share / spec.width if is_constrained else 0.0
        below = _add(Flow(skip.direct.times(1 - lost), skip.aligned), below)
        if homogeneous:
            known = _along(trace.stream, pairs, width=spec.width, factor=2 * share * (1 - share))
            below = _with_aligned(below, known)
    below = Flow(below.direct.normalized(), None if below.aligned is None else below.aligned.normalized())
    return below, branch.kernels, _scatter(trace, branch, homogeneous=homogeneous)


def norm_backward(step: Step, flow: Flow, pairs: SamplePairs) -> Flow:
    """LayerNorm and RMSNorm divide the gradient of sample i by its RMS; BatchNorm see :func:`batch_norm_backward`.

    The projections of a LayerNorm's Jacobian are no business of this function: see the module's docstring.
    """
    assert isinstance(step.operation, Norm)
    log_factor = 2 * math.log(step.operation.scale) - step.before.log_scale
    if step.batch_norm is not None:
        values = batch_norm_backward(flow.direct.values, step.batch_norm, pairs)
        return Flow(LogScaled(values, flow.direct.log_scale + log_factor))
    inverse_rms = 1 / np.sqrt(np.maximum(pairs.diagonal(step.before.gram), 1e-30))
    return Flow(flow.direct.times(pairs.outer(inverse_rms), log_factor))


def _scatter(trace: BlockTrace, branch: BranchBackward, *, homogeneous: bool) -> Scatter:
    """Combine branch and skip: the branch's part enters squared, ``2 <delta, J^T delta>`` adds ``4 r (1 - r) R / n``.

    A norm after the sum divides by the sum's RMS, which scatters as the forward pass does and moves with the
    masks; ``E[1/sigma^2]`` then lies above ``1 / E[sigma^2]``.
    """
    share = trace.branch_share
    masks = share**2 * branch.common
    directed = share**2 * branch.directed + 4 * share * (1 - share) / trace.spec.width
    if trace.post is None:
        return Scatter(directed, masks, 0.0, masks if homogeneous else 0.0)
    if trace.spec.norm_kind == "batch":
        return Scatter(directed, 0.0, 0.0, 0.0)
    sizes = max(trace.fresh_log_variance - masks, 0.0)
    return Scatter(directed, sizes, trace.unit_log_variance - masks, 0.0)


def _weight_kernels(step: Step, flow: Flow) -> tuple[LogScaled, LogScaled | None]:
    """``dW = sum_i delta_i x_i^T``, so ``||dW||^2 = sum_ij <delta_i, delta_j> <x_i, x_j>``."""
    assert isinstance(step.operation, Linear)
    log_factor = step.before.log_scale + math.log(step.operation.fan_in)
    direct = flow.direct.times(step.before.gram, log_factor)
    return direct, None if flow.aligned is None else flow.aligned.times(step.before.gram, log_factor)


def _linear_backward(
    step: Step, flow: Flow, pairs: SamplePairs, *, share: float, lost: float
) -> tuple[Flow, LogScaled | None]:
    """``W^T delta``: energy times ``fan_in std^2``, less the direction of the input; that direction on its own."""
    operation = step.operation
    assert isinstance(operation, Linear)
    gain = operation.fan_in * operation.weight_std**2
    direct = flow.direct.times(gain * max(1 - lost, 0.0))
    if flow.aligned is None:
        return Flow(direct), None
    known = _along(step.before, pairs, width=operation.fan_in, factor=share**2)
    return Flow(direct, flow.aligned.times(gain)), known


def _activation_backward(step: Step, flow: Flow) -> Flow:
    assert step.derivative is not None
    aligned = None if flow.aligned is None else flow.aligned.times(step.derivative)
    return Flow(flow.direct.times(step.derivative), aligned)


def _along(signal: Signal, pairs: SamplePairs, *, width: int, factor: float) -> LogScaled:
    """Kernel of the gradients ``x_i / |x_i|^2``: those with ``<delta_i, x_i> = 1`` and no other component."""
    own = np.maximum(pairs.diagonal(signal.gram), 1e-30)
    if signal.log_scale == -math.inf:
        return LogScaled(np.zeros_like(signal.gram), -math.inf)
    return LogScaled(factor / width * signal.gram / pairs.outer(own), -signal.log_scale)


def _with_aligned(flow: Flow, extra: LogScaled | None) -> Flow:
    if extra is None or flow.aligned is None:
        return flow
    return Flow(flow.direct, flow.aligned.plus(extra))


def _scaled(flow: Flow, factor: float) -> Flow:
    return Flow(flow.direct.times(factor), None if flow.aligned is None else flow.aligned.times(factor))


def _add(first: Flow, second: Flow) -> Flow:
    direct = first.direct.plus(second.direct)
    if first.aligned is None or second.aligned is None:
        return Flow(direct)
    return Flow(direct, first.aligned.plus(second.aligned))


def _mask_overlap(step: Step, pairs: SamplePairs) -> float:
    """How alike the samples' masks are: 1 where the same units are on, 0 where they are independent (ReLU)."""
    assert step.derivative is not None
    return max(2 * pairs.batch_mean(pairs.cosines(step.derivative)) - 1, 0.0)


def head_flow(size: int, *, homogeneous: bool) -> Flow:
    """The kernels at the logits: ``<e_i, e_j>`` itself."""
    zero = LogScaled(np.zeros(size), -math.inf)
    return Flow(LogScaled(np.ones(size)), zero if homogeneous else None)
