"""How far one draw of the weights moves the size of the stream, and how alike it makes samples by chance.

At infinite width the cosine c between two samples is a function of depth. At width n it also wanders: a draw of the
weights moves the two by random vectors, whose squared cosine is 1/n and not 0. With q the variance of the cosine, r the
branch's share of the sum and k the derivative of the cosine behind the branch with respect to that before it,

    ``q' = (1 - r + r k)^2 q + (1 - c^2 - q) (2 r (1 - r) + 2 r^2) / n``,

one term from the sum's cross products and one from the two matrices of the branch. Samples scatter together by what
they share, so that q raises the variance of ``ln sum_i |x_i|^2`` above that of infinite width by ``(1 - 1/B) q k``
times what one sample has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

from kilolayer.theory.activations import get_activation
from kilolayer.theory.block import Act, Linear, Norm
from kilolayer.theory.forward import BlockTrace
from kilolayer.theory.pairs import SamplePairs
from kilolayer.theory.signal import Step


def stream_log_variances(traces: Sequence[BlockTrace], pairs: SamplePairs) -> list[float]:
    """Variance of the logarithm of the batch's second moment, in front of the first block and behind every block."""
    width = traces[0].spec.width
    between = 1 - 1 / pairs.batch_size
    chance = 1 / width
    found = [traces[0].stream.log_variance]
    for trace in traces:
        kernel = cosine_slope(trace, pairs)
        fresh = trace.fresh_log_variance + between * chance * kernel * trace.unit_log_variance
        found.append(0.0 if trace.post is not None else carried(trace) ** 2 * found[-1] + max(fresh, 0.0))
        chance = _next_chance(chance, trace, kernel, pairs)
    return found


def carried(trace: BlockTrace) -> float:
    """Part of a change of the stream's log second moment that is left in the sum."""
    slope = math.prod(step.slope for step in trace.branch.steps)
    return 1 - trace.branch_share + trace.branch_share * slope


def between_samples(batch: float, own: float, pairs: SamplePairs) -> float:
    """Covariance between two samples, from the variance of the batch's mean and that of one sample."""
    return max(batch - own / pairs.batch_size, 0.0) / (1 - 1 / pairs.batch_size)


def cosine_slope(trace: BlockTrace, pairs: SamplePairs) -> float:
    """Derivative of the cosine between two samples behind the branch with respect to that before it.

    A matrix keeps a cosine; behind an activation its derivative is ``q E[phi'_i phi'_j] / E[phi^2]``, over what is left
    of E[phi^2] where a LayerNorm takes the mean away.
    """
    slope = 1.0
    steps = trace.branch.steps
    for step, following in zip(steps, (*steps[1:], None), strict=True):
        if isinstance(step.operation, Act):
            centers = following is not None and following.operation == Norm("layer")
            assert step.derivative is not None
            between = pairs.mean_between(pairs.cosines(step.derivative))
            slope *= between * _slope_when_alike(step.operation.activation, _variance(step), centers=centers)
    return slope


def _next_chance(chance: float, trace: BlockTrace, kernel: float, pairs: SamplePairs) -> float:
    share, width = trace.branch_share, trace.spec.width
    cosine = pairs.mean_between(pairs.cosines(trace.total.gram))
    num_matrices = sum(isinstance(step.operation, Linear) for step in trace.branch.steps)
    apart = max(1 - cosine**2 - chance, 0.0)
    kept = 1 - share + share * kernel
    drawn = 2 * share * (1 - share) + num_matrices * share**2
    return kept**2 * chance + apart * drawn / width


@cache
def _slope_when_alike(activation: str, variance: float, *, centers: bool) -> float:
    phi = get_activation(activation)
    left = 1 - phi.cosine(0.0, variance) if centers else 1.0
    return variance * phi.derivative_second_moment(variance) / (phi.second_moment(variance) * left)


def _variance(step: Step) -> float:
    """Variance of the pre-activations, rounded so that branches alike share one result; 1 where the scale is idle."""
    assert isinstance(step.operation, Act)
    if get_activation(step.operation.activation).is_homogeneous:
        return 1.0
    return float(f"{math.exp(max(step.before.log_scale, -300.0)):.3g}")
