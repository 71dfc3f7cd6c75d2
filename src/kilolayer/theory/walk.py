"""One pass from the logits down to block 1: what every matrix's gradient is made of."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from kilolayer.theory.backward import Flow, Scatter, WeightKernel, block_backward, branch_backward, head_flow
from kilolayer.theory.block import Norm
from kilolayer.theory.directions import anchored_directions, anchors
from kilolayer.theory.forward import BlockTrace, BranchTrace
from kilolayer.theory.hermite import Array
from kilolayer.theory.log_scaled import LogScaled
from kilolayer.theory.output import OutputDraws, normal_quantiles
from kilolayer.theory.pairs import SamplePairs

CHUNK = 32
"""Kernels averaged over the output draws at a time: the draws are read from memory once for all of them."""


@dataclass(frozen=True)
class MatrixGradient:
    """``ln ||dW||^2`` of one matrix over the output draws, and the scatter that comes on top.

    ``log_direct`` and ``log_aligned`` (None where there is no such part) have shape ``(draws,)``; the others are
    those of :class:`~kilolayer.theory.backward.WeightKernel`.
    """

    log_direct: Array
    log_aligned: Array | None
    log_variance: float
    drawn: float
    directed: float
    common: float


@dataclass(frozen=True)
class BackwardWalk:
    """Gradients by block and matrix, scatter by block, :func:`anchored_directions`; ``is_mixed`` with a batch norm."""

    matrices: list[list[MatrixGradient]]
    scatters: list[Scatter]
    head_scatter: Scatter
    directions: dict[int, dict[int, float]]
    is_mixed: bool


def walk_back(
    traces: list[BlockTrace],
    head_trace: BranchTrace,
    *,
    outputs: OutputDraws,
    pairs: SamplePairs,
    homogeneous: bool,
) -> BackwardWalk:
    """Carry the gradient kernels from the logits through every block.

    A batch norm mixes samples on the way back, so that output draws cannot be put in behind it: with one
    anywhere the mean over the draws is what travels.
    """
    mean_products = outputs.products.mean(axis=0, dtype=float)
    is_mixed = _has_batch_norm(traces, head_trace)
    flow = head_flow(len(pairs.rows), homogeneous=homogeneous)
    if is_mixed:
        flow = Flow(LogScaled(mean_products))
    top = branch_backward(head_trace, flow, pairs, share=1.0, is_constrained=homogeneous)
    flow = top.flow
    head_scatter = Scatter(top.directed, top.common, 0.0, top.common if homogeneous else 0.0)
    averages = _DrawAverages(outputs, pairs, is_mixed=is_mixed, homogeneous=homogeneous)
    scatters: list[Scatter] = []
    flows: dict[int, Array] = {}
    inputs: dict[int, Array] = {}
    wanted = anchors(len(traces))
    for index in range(len(traces) - 1, -1, -1):
        if index in wanted:
            flows[index], inputs[index] = flow.direct.values, _first_input(traces[index])
        flow, kernels, scatter = block_backward(traces[index], flow, pairs, homogeneous=homogeneous)
        averages.add(kernels)
        scatters.append(scatter)
    table = anchored_directions(flows, inputs, gradient=None if is_mixed else mean_products, pairs=pairs)
    return BackwardWalk(averages.finish()[::-1], scatters[::-1], head_scatter, table, is_mixed)


def _has_batch_norm(traces: list[BlockTrace], head_trace: BranchTrace) -> bool:
    operations = [step.operation for trace in traces for step in trace.branch.steps]
    operations += [trace.post.operation for trace in traces if trace.post is not None]
    operations += [step.operation for step in head_trace.steps]
    return any(isinstance(one, Norm) and one.kind == "batch" for one in operations)


def _first_input(trace: BlockTrace) -> Array:
    """Gram matrix of the input of a block's first matrix."""
    return next(step.before.gram for step in trace.branch.steps if step.derivative is None)


@dataclass
class _DrawAverages:
    """Turns weight kernels into ``ln ||dW||^2`` per output draw, in chunks."""

    outputs: OutputDraws
    pairs: SamplePairs
    is_mixed: bool
    homogeneous: bool
    waiting: list[list[WeightKernel]] = field(default_factory=list)
    done: list[list[MatrixGradient]] = field(default_factory=list)

    def __post_init__(self) -> None:
        num_draws = len(self.outputs.sizes)
        self.mixed_noise = self.outputs.centered_spread * normal_quantiles(num_draws, np.random.default_rng(2))
        self.aligned_products = None
        if self.homogeneous:
            along = self.outputs.along
            self.aligned_products = np.stack([self.pairs.outer(row) for row in along]).astype(np.float32)

    def add(self, kernels: list[WeightKernel]) -> None:
        self.waiting.append(kernels)
        if sum(len(row) for row in self.waiting) >= CHUNK:
            self._work_off()

    def finish(self) -> list[list[MatrixGradient]]:
        self._work_off()
        return self.done

    def _work_off(self) -> None:
        flat = [kernel for row in self.waiting for kernel in row]
        if not flat:
            return
        direct = self._log_direct([kernel.direct for kernel in flat])
        aligned: list[Array] | list[None] = [None] * len(flat)
        if self.aligned_products is not None:
            present = [kernel.aligned for kernel in flat if kernel.aligned is not None]
            aligned = self._log_means(present, self.aligned_products, self.outputs.log_scale)
        gradients = [
            MatrixGradient(direct[i], aligned[i], kernel.log_variance, kernel.drawn, kernel.directed, kernel.common)
            for i, kernel in enumerate(flat)
        ]
        for row in self.waiting:
            self.done.append(gradients[: len(row)])
            gradients = gradients[len(row) :]
        self.waiting = []

    def _log_direct(self, kernels: list[LogScaled]) -> list[Array]:
        if not self.is_mixed:
            return self._log_means(kernels, self.outputs.products, 0.0)
        means = [math.log(max(self.pairs.batch_mean(kernel.values), 1e-300)) + kernel.log_scale for kernel in kernels]
        return [mean + self.mixed_noise for mean in means]

    def _log_means(self, kernels: list[LogScaled], products: Array, log_scale: float) -> list[Array]:
        """``ln 1/B^2 sum_ij K_ij products_ij`` for every kernel and draw."""
        scaled = [kernel.normalized() for kernel in kernels]
        rows = np.stack([kernel.values * self.pairs.weights for kernel in scaled], axis=1).astype(np.float32)
        means = np.maximum(products @ rows, 1e-30)
        logs = np.log(means.astype(float)) + np.array([kernel.log_scale for kernel in scaled]) + log_scale
        return list(logs.T)
