"""Factors per block: how activations and gradients grow, how much a draw of the weights scatters them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kilolayer.theory.activations import get_activation
from kilolayer.theory.block import Act, BlockSpec, Linear, Operation

TORCH_DEFAULT_WEIGHT_VARIANCE = 1 / 3
"""fan_in * std^2 of ``torch.nn.Linear``: ``kaiming_uniform_(a=sqrt(5))`` draws from +-1/sqrt(fan_in)."""


def relu_rate(weight_std: float, fan_in: int) -> float:
    """RMS factor per ReLU layer: ``sqrt(fan_in std^2 / 2)``, forward and, for square matrices, backward.

    1 for Kaiming's ``std = sqrt(2 / fan_in)``, 0.707 for ``sqrt(1 / fan_in)``; for a fixed std it grows with the
    width.

    Examples:
        >>> round(relu_rate(256**-0.5, 256), 3), round(relu_rate(0.02, 256), 2), round(relu_rate(0.02, 8192), 2)
        (0.707, 0.23, 1.28)

    Reference: He et al. 2015, arXiv:1502.01852, eq. 10 and 14.
    """
    return math.sqrt(fan_in * weight_std**2 / 2)


def default_init_rate(activation: str = "relu", *, variance: float = 1.0) -> float:
    """RMS factor per layer on gradients under torch's default initialization: ``sqrt(E[phi'^2] / 3)``.

    0.408 for ReLU. The forward factor approaches 1 only because the default biases take over.

    Examples:
        >>> round(default_init_rate(), 3)
        0.408

    Reference: He et al. 2015, arXiv:1502.01852, eq. 14, with fan_in std^2 = 1/3.
    """
    return math.sqrt(TORCH_DEFAULT_WEIGHT_VARIANCE * get_activation(activation).derivative_second_moment(variance))


def critical_std(activation: str, fan_in: int, *, variance: float = 1.0) -> float:
    """Weight std that keeps the variance of pre-activations: ``sqrt(variance / (fan_in E[phi(sqrt(variance) z)^2]))``.

    Examples:
        >>> round(critical_std("relu", 128), 3), round(critical_std("tanh", 128), 3)
        (0.125, 0.141)

    Reference: He et al. 2015, arXiv:1502.01852, eq. 10, for ReLU; Poole et al. 2016, arXiv:1606.05340, eq. 3.
    """
    return math.sqrt(variance / (fan_in * get_activation(activation).second_moment(variance)))


def batch_norm_rate(activation: str = "relu") -> float:
    """RMS factor per layer, towards the input, on gradients in a chain of ``batch norm, activation, linear``.

    Batch norms drive samples apart until pre-activations are uncorrelated; then
    ``sqrt(E[phi'^2] / (E[phi^2] - E[phi]^2))`` over a standard normal, whatever the weights: the norm divides by a
    standard deviation that leaves out what samples share. ``sqrt(pi / (pi - 1)) = 1.21`` for ReLU, for a large batch.

    Examples:
        >>> round(batch_norm_rate(), 4), batch_norm_rate("identity")
        (1.2112, 1.0)

    Reference: Yang et al. 2019, arXiv:1902.08129, theorem 3.9.
    """
    phi = get_activation(activation)
    shared = phi.cosine(0.0, 1.0)
    return math.sqrt(phi.derivative_second_moment(1.0) / (phi.second_moment(1.0) * (1 - shared)))


def residual_growth(branch_gain: float, *, skip_scale: float = 1.0) -> float:
    """RMS factor per block of a residual stream without norm: ``sqrt(skip_scale^2 + branch_gain)``.

    The branch is independent of the skip at initialization, so second moments add; ``branch_gain`` is the
    branch's second moment over that of the stream. Gradients grow by the same factor towards the input.

    Raises:
        ValueError: a negative branch gain.

    Examples:
        >>> round(residual_growth(1.0) ** 64)
        4294967296

    Reference: Zhang et al. 2019 (Fixup), arXiv:1901.09321, section 2.
    """
    if branch_gain < 0:
        raise ValueError(f"branch_gain is a ratio of second moments and must be >= 0, got {branch_gain}")
    return math.sqrt(skip_scale**2 + branch_gain)


@dataclass(frozen=True)
class BlockRates:
    """What one block does to sizes, for infinitely many units but for ``log_variance``.

    Attributes:
        forward: RMS of y over RMS of x.
        backward: RMS of the gradient at x over that at y.
        branch_gain: second moment of ``branch_scale * f(x)`` over that of x.
        branch_to_skip: RMS of ``branch_scale * f(x)`` over that of ``skip_scale * x``; ``inf`` without skip.
        identity_fraction: share of the skip in the second moment of the sum, the input of a post-norm:
            ``skip_scale^2 / (skip_scale^2 + branch_gain)``. Near 1 the norm hardly bends the stream.
        log_variance: what the block adds to the variance, over draws of the weights, of the log second moment of
            y, for samples all alike. A chain of L ReLU layers scatters by a factor ``exp(+-sqrt(5 L / n) / 2)`` in
            RMS. 0 behind a post-norm.
    """

    forward: float
    backward: float
    branch_gain: float
    branch_to_skip: float
    identity_fraction: float
    log_variance: float


def block_rates(block: BlockSpec, *, input_rms: float = 1.0, cosine: float = 0.0) -> BlockRates:
    """Factors of one block for a stream of this RMS.

    ``cosine`` is the mean cosine between samples in x: only batch norms ask for it.

    Raises:
        ValueError: an ``input_rms`` that is not positive.

    Examples:
        >>> import math
        >>> block = BlockSpec(100, (math.sqrt(2 / 100), math.sqrt(1 / 100)))
        >>> rates = block_rates(block)
        >>> round(rates.forward, 4), round(rates.branch_gain, 4), round(rates.log_variance, 5)
        (1.4142, 1.0, 0.0275)

    Reference: He et al. 2015, arXiv:1502.01852, eq. 10 and 14; Hanin & Nica 2018, arXiv:1812.05994, theorem 1.
    """
    if input_rms <= 0:
        raise ValueError(f"input_rms must be positive, got {input_rms}")
    variance = float(input_rms) ** 2
    branch = _walk(block.branch, variance, cosine)
    from_branch = block.branch_scale**2 * branch.variance
    from_skip = block.skip_scale**2 * variance if block.has_skip else 0.0
    total = from_branch + from_skip
    share = from_branch / total if total else 1.0
    gradient = block.branch_scale**2 * branch.gradient + (block.skip_scale**2 if block.has_skip else 0.0)
    log_variance = share**2 * branch.log_variance + 4 * share * (1 - share) / block.width
    out = total
    if block.has_post_norm and total:
        shared = (share * branch.cosine + (1 - share) * cosine) if block.norm_kind == "batch" else 0.0
        gradient /= total * (1 - shared)
        out, log_variance = 1.0, 0.0
    return BlockRates(
        forward=math.sqrt(out / variance),
        backward=math.sqrt(gradient),
        branch_gain=from_branch / variance,
        branch_to_skip=math.sqrt(from_branch / from_skip) if from_skip else math.inf,
        identity_fraction=1 - share,
        log_variance=log_variance,
    )


@dataclass(frozen=True)
class _Sizes:
    """Second moment, cosine between samples, gradient gain and log variance at some place of a branch.

    ``mean_share`` is the share of the second moment that the mean over the units takes, behind an activation.
    """

    variance: float
    cosine: float
    gradient: float = 1.0
    log_variance: float = 0.0
    mean_share: float = 0.0


def _walk(operations: Sequence[Operation], variance: float, cosine: float) -> _Sizes:
    """Carry the sizes through the operations; a norm's gradient factor is 1 over its input's variance."""
    now = _Sizes(variance, cosine)
    for operation in operations:
        now = _step(operation, now)
    return now


def _step(operation: Operation, now: _Sizes) -> _Sizes:
    if isinstance(operation, Linear):
        gain = operation.fan_in * operation.weight_std**2
        return _Sizes(now.variance * gain, now.cosine, now.gradient * gain, now.log_variance + 2 / operation.fan_out)
    if isinstance(operation, Act):
        phi = get_activation(operation.activation)
        slope = phi.log_slope(now.variance)
        fresh = (phi.squared_spread(now.variance) - 2 * slope**2) / operation.width
        return _Sizes(
            phi.second_moment(now.variance),
            phi.cosine(now.cosine, now.variance),
            now.gradient * phi.derivative_second_moment(now.variance),
            slope**2 * now.log_variance + fresh,
            mean_share=phi.cosine(0.0, now.variance),
        )
    is_batch = operation.kind == "batch"
    removed = {"batch": now.cosine, "layer": now.mean_share}.get(operation.kind, 0.0)
    spread = now.variance * (1 - removed)
    scale = operation.scale**2
    return _Sizes(scale, 0.0 if is_batch else now.cosine, now.gradient * scale / spread)
