"""The covariance between samples, carried through linear layers, activations and norms."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from kilolayer.theory.activations import get_activation
from kilolayer.theory.batch_norm import BatchNormStep, batch_norm_step
from kilolayer.theory.block import Act, Linear, Norm, Operation
from kilolayer.theory.hermite import Array
from kilolayer.theory.pairs import SamplePairs


@dataclass(frozen=True)
class Signal:
    """A tensor (samples, units) with independent, identically distributed units, as random weights make it.

    Attributes:
        gram: packed covariance between samples of one unit, scaled to a mean diagonal of 1.
        log_scale: natural logarithm of the mean second moment, in the limit of infinite width.
        log_variance: variance of the logarithm of the batch's second moment from one draw of the weights to
            the next; of order 1/width.
    """

    gram: Array
    log_scale: float
    log_variance: float = 0.0


@dataclass(frozen=True)
class Step:
    """One operation as the backward pass needs it.

    Attributes:
        operation: what was applied.
        before: the signal it was applied to.
        derivative: packed E[phi' phi'] of an activation.
        spread: relative variance of phi'^2 of an activation.
        slope: d ln(second moment out) / d ln(second moment in): 1 where homogeneous, 0 for a norm.
        unit_log_variance: variance of ln |row|^2 that the operation adds for one sample.
        batch_norm: what a batch norm did.
    """

    operation: Operation
    before: Signal
    derivative: Array | None = None
    spread: float = 0.0
    slope: float = 1.0
    unit_log_variance: float = 0.0
    batch_norm: BatchNormStep | None = None


def start_signal(gram: Array, width: int, pairs: SamplePairs) -> Signal:
    """The stream before block 1: ``width`` units drawn from the given covariance between samples."""
    packed = pairs.pack(gram)
    second_moment = float(pairs.diagonal(packed).mean())
    normalized = packed / second_moment
    return Signal(normalized, math.log(second_moment), 2 * pairs.batch_mean(normalized**2) / width)


def apply(
    operation: Operation, signal: Signal, pairs: SamplePairs, *, fan_in: int | None = None
) -> tuple[Signal, Step]:
    """One operation: the signal behind it, and the step for the way back. For ``fan_in`` see :func:`apply_norm`."""
    if isinstance(operation, Linear):
        return _apply_linear(operation, signal, pairs)
    if isinstance(operation, Act):
        return _apply_activation(operation, signal, pairs)
    return apply_norm(operation, signal, pairs, fan_in=fan_in)


def _apply_linear(operation: Linear, signal: Signal, pairs: SamplePairs) -> tuple[Signal, Step]:
    """Second moment times ``fan_in std^2``; its logarithm scatters by ``2 mean_ij cos_ij^2 / fan_out``.

    The variance of ``sum_k h_k^2 / n`` for Gaussian h: He et al. 2015, arXiv:1502.01852, eq. 7 gives the mean.
    """
    gain = operation.fan_in * operation.weight_std**2
    fresh = 2 * pairs.batch_mean(signal.gram**2) / operation.fan_out
    log_gain = math.log(gain) if gain > 0 else -math.inf
    after = Signal(signal.gram, signal.log_scale + log_gain, signal.log_variance + fresh)
    return after, Step(operation, signal, unit_log_variance=2 / operation.fan_out)


def _apply_activation(operation: Act, signal: Signal, pairs: SamplePairs) -> tuple[Signal, Step]:
    """Arc-cosine kernels for ReLU (Cho & Saul 2009), Mehler's formula for the rest.

    ``ln sum_k phi(h_k)^2`` scatters by ``mean_ij cov(phi_i^2, phi_j^2) / n`` given the covariance of h, of which
    ``2 mean_ij cos_ij^2 / n`` is the scatter h itself had already: 5/n and 2/n for samples all alike (Hanin &
    Nica 2018, arXiv:1812.05994, theorem 1).
    """
    activation = get_activation(operation.activation)
    # A matrix of zeros leaves log_scale = -inf; moments of a saturating activation need a variance above 0.
    scale = 0.0 if activation.is_homogeneous else max(signal.log_scale, -300.0)
    diagonal = pairs.diagonal(signal.gram) * math.exp(scale)
    kernels = activation.kernels(diagonal, pairs.cosines(signal.gram), rows=pairs.rows, cols=pairs.cols)
    own = pairs.diagonal(kernels.value)
    mean = float(own.mean())
    variance = float(diagonal.mean())
    slope = activation.log_slope(variance)
    drawn = 2 * pairs.batch_mean(signal.gram**2) / operation.width
    spread = pairs.batch_mean(kernels.square - pairs.outer(own)) / mean**2 / operation.width
    after = Signal(
        kernels.value / mean,
        math.log(mean) + (signal.log_scale if activation.is_homogeneous else 0.0),
        slope**2 * (signal.log_variance - drawn) + spread,
    )
    return after, Step(
        operation,
        signal,
        derivative=kernels.derivative,
        spread=activation.derivative_spread(variance),
        slope=slope,
        unit_log_variance=(activation.squared_spread(variance) - 2 * slope**2) / operation.width,
    )


def without_unit_mean(signal: Signal, behind: Step, pairs: SamplePairs) -> Signal:
    """The signal less each sample's mean over the units, which a LayerNorm removes before it divides.

    Behind a matrix that mean is 0 up to 1/width; ``behind`` an activation it is ``E[phi]``, and for ReLU takes a
    share 1/pi of the second moment with it.
    """
    if not isinstance(behind.operation, Act):
        return signal
    activation = get_activation(behind.operation.activation)
    before = behind.before
    scale = 0.0 if activation.is_homogeneous else max(before.log_scale, -600.0)
    diagonal = pairs.diagonal(before.gram) * math.exp(scale)
    own = activation.kernels(diagonal, pairs.cosines(before.gram), rows=pairs.rows, cols=pairs.cols).value
    # Uncorrelated pre-activations: E[phi(u)] E[phi(v)].
    apart = activation.kernels(diagonal, np.zeros_like(own), rows=pairs.rows, cols=pairs.cols).value
    centered = signal.gram - apart / pairs.diagonal(own).mean()
    share = float(pairs.diagonal(centered).mean())
    return replace(signal, gram=centered / share, log_scale=signal.log_scale + math.log(share))


def apply_norm(
    operation: Norm,
    signal: Signal,
    pairs: SamplePairs,
    *,
    fan_in: int | None = None,
    settled: Array | None = None,
    settled_share: float = 0.0,
) -> tuple[Signal, Step]:
    """LayerNorm and RMSNorm give every sample second moment ``scale^2``; BatchNorm works along the batch.

    ``fan_in`` is that of the matrix in front, if one stands there. ``settled`` is a part of the signal (packed
    Gram, share of the second moment) that left a batch norm before, so that its features have unit variance.
    """
    log_scale = 2 * math.log(operation.scale)
    if operation.kind == "batch":
        step = batch_norm_step(signal.gram, pairs, fan_in=fan_in, settled=settled, settled_share=settled_share)
        return Signal(step.gram, log_scale), Step(operation, signal, slope=0.0, batch_norm=step)
    return Signal(pairs.cosines(signal.gram), log_scale), Step(operation, signal, slope=0.0)


class Singles:
    """Arrays in single precision; one that is met again is shared. Keep the originals alive while it is in use."""

    def __init__(self) -> None:
        self._known: dict[int, Array] = {}

    def array(self, values: Array) -> Array:
        """The array as float32."""
        return self._known.setdefault(id(values), values.astype(np.float32))

    def signal(self, signal: Signal) -> Signal:
        """The signal with its Gram matrix as float32."""
        return replace(signal, gram=self.array(signal.gram))

    def step(self, step: Step) -> Step:
        """The step with its matrices as float32."""
        return replace(
            step,
            before=self.signal(step.before),
            derivative=None if step.derivative is None else self.array(step.derivative),
            batch_norm=None if step.batch_norm is None else step.batch_norm.compact(),
        )
