"""Batch norm between samples: what a batch of finite size and low rank does to kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from kilolayer.theory.hermite import Array
from kilolayer.theory.pairs import SamplePairs

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)
_PLACES = 0.5 * (_NODES + 1)


@dataclass(frozen=True)
class BatchNormStep:
    """A batch norm in the forward pass.

    Attributes:
        gram: packed covariance between samples behind it, mean diagonal 1.
        variance: mean variance of a feature over the batch, in units of the signal's second moment.
        inverse_moment: ``E[1 / s] `` for s = a feature's variance over its mean; above 1.
        fresh_share: share of the variance that has not left a batch norm before.
    """

    gram: Array
    variance: float
    inverse_moment: float
    fresh_share: float

    def compact(self) -> BatchNormStep:
        """The step in single precision."""
        return replace(self, gram=self.gram.astype(np.float32))


def batch_norm_step(
    gram: Array,
    pairs: SamplePairs,
    *,
    fan_in: int | None = None,
    settled: Array | None = None,
    settled_share: float = 0.0,
) -> BatchNormStep:
    """Covariance between samples behind a batch norm.

    A feature is a Gaussian vector h over the batch with covariance C = P gram P (P removes the mean) and comes
    out as ``sqrt(B) h / |h|``. With S = C / tr C and s = |h|^2 / tr C, whose variance is ``2 tr S^2``,

        ``E[h h^T / |h|^2] = S - 2 S^2 / (1 + 2 lambda) + ...``,  ``lambda = tr S^3 / tr S^2``.

    The denominator is exact when one direction dominates. Features that left a batch norm before have s = 1 and
    take no part: ``S^2`` is reduced by ``settled_share^2`` times that of the settled part.
    ``E[1 / s]`` follows for s = (1 - m lambda) + lambda chi^2_m with m directions of size lambda. A layer of
    ``fan_in`` n inputs draws C anew, as a Wishart matrix: ``tr S^2`` gains ``1/n``, ``tr S^3`` gains
    ``3 tr S^2 / n + 1/n^2``, and the mean of S^2 changes in proportion to S only.

    Reference: Yang et al. 2019, arXiv:1902.08129, section 3; the expansion is the delta method.
    """
    shape, trace = _shape(gram, pairs)
    spread = (shape @ shape).astype(float)
    variance_share = 1.0
    if settled is not None and settled_share > 0:
        kept, kept_trace = _shape(settled, pairs)
        share = settled_share * kept_trace / trace
        spread -= share**2 * (kept @ kept)
        variance_share = 1.0 - share
    second = max(float(np.trace(spread)), 1e-12)
    third = float((spread * shape).sum())
    largest = max(third / second, 1e-12)
    drawn = variance_share**2 / fan_in if fan_in else 0.0
    out = shape - 2 / (1 + 2 * largest) * spread
    out *= pairs.num_samples / np.trace(out)
    return BatchNormStep(
        gram=pairs.pack(out),
        variance=trace / pairs.num_samples,
        inverse_moment=_inverse_moment(second + drawn, third + 3 * second * drawn + drawn**2),
        fresh_share=variance_share,
    )


def batch_norm_backward(kernel: Array, step: BatchNormStep, pairs: SamplePairs) -> Array:
    """Gradient kernel in front of a batch norm, in units where the signal's second moment is 1; packed.

    Feature by feature ``g -> (1/sigma) (P g - h h^T g / B)`` with h the feature behind the norm. Averaged over
    Gaussian h of covariance H, for the share of the variance that has not left a batch norm before (the
    gradient of the rest is already orthogonal to h):

        ``M - (H M + M H) / B + c (2 H M H + H tr(H M)) / B^2``,  M = P kernel P,

    with c such that ``|h|^2 = B``. The factor ``E[1 / sigma^2]`` makes gradients grow towards the input.

    Reference: Ioffe & Szegedy 2015, arXiv:1502.03167, section 3; Yang et al. 2019, arXiv:1902.08129, theorem 3.9.
    """
    size = pairs.num_samples
    centered = pairs.centered(pairs.unpack(kernel)).astype(np.float32)
    features = pairs.unpack(step.gram).astype(np.float32)
    product = features @ centered
    along = float(np.trace(product))
    twice = 2 * (product @ features) + along * features
    twice *= size * along / float(np.trace(twice))
    removed = (product + product.T) / size - twice / size**2
    out = centered - step.fresh_share * removed
    return pairs.pack(out.astype(float)) * (step.inverse_moment / step.variance)


def _shape(gram: Array, pairs: SamplePairs) -> tuple[Array, float]:
    """``C / tr C`` in single precision, and ``tr C``, for the centered covariance C."""
    centered = pairs.centered(pairs.unpack(gram))
    trace = float(np.trace(centered))
    return (centered / trace).astype(np.float32), trace


def _inverse_moment(second: float, third: float) -> float:
    """``E[1 / s]`` for ``s = a + b chi^2_m`` with mean 1 and cumulants ``2 second`` and ``8 third``.

    It is the integral of ``E exp(-s t) = exp(-a t) (1 + 2 b t)^(-m/2)`` over t > 0.
    """
    size = max(third / second, second)
    directions = second / size**2
    times = _PLACES / (1 - _PLACES)
    values = np.exp(-(1 - directions * size) * times) * (1 + 2 * size * times) ** (-directions / 2)
    return float(0.5 * _WEIGHTS @ (values / (1 - _PLACES) ** 2))
