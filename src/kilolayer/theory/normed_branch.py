"""What a width of n units changes about the gradient through a branch that holds norms: 1/n, which depth adds up.

Let a branch with a norm in it multiply the second moment of a gradient by J at infinite width. At width n the mean
factor is ``J (1 + e/n)``, with these parts of e:

    ``n U``      a norm divides by the size s of the stream, and ``E[1/s] > 1/E[s]``: U is the variance of ln s,
    ``- 1``      the branch does not change with the size of its input, so no gradient arrives along that input,
    ``k - c``    a norm inside or at the end divides by the size of what enters it: k/n is the variance of its
                 logarithm, c/n the covariance with the gradient's size, since both prefer the same units,
    ``-(1 + c)`` and it removes the gradient along what enters it.

With ``psi = phi`` less its mean where a LayerNorm removes it, ``k = E[psi^4] / E[psi^2]^2 - 1`` and
``c = E[psi^2 phi'^2] / (E[psi^2] E[phi'^2]) - 1``. An end norm stands behind one more matrix, which adds 2 to k and
removes one more direction in front of it and one behind. For a ReLU branch and U = 2/n, e is 1 in pre-LN, 4 in end-LN
and sandwich-LN, 3.3 in sub-LN.
"""

from __future__ import annotations

import math
from functools import cache

from kilolayer.theory.activations import get_activation
from kilolayer.theory.block import Act, Norm
from kilolayer.theory.forward import BlockTrace
from kilolayer.theory.hermite import Array, gaussian_mean
from kilolayer.theory.signal import Step


def has_branch_norm(trace: BlockTrace) -> bool:
    """Whether a norm stands before, inside or at the end of the branch."""
    return any(isinstance(step.operation, Norm) for step in trace.branch.steps)


def gradient_excess(trace: BlockTrace, unit_log_variance: float) -> float:
    """``e/n`` of the module's docstring; 0 without norms, and for batch norms, which have their own theory.

    ``unit_log_variance`` is U, for the stream in front of the block.
    """
    if not has_branch_norm(trace) or trace.spec.norm_kind == "batch":
        return 0.0
    excess = unit_log_variance - 1 / trace.spec.width
    slots = trace.spec.norm_slots
    for step, following in zip(trace.branch.steps, trace.branch.steps[1:], strict=False):
        operation = step.operation
        if not isinstance(operation, Act):
            continue
        is_inner = isinstance(following.operation, Norm)
        if is_inner or "end" in slots:
            centers = is_inner and trace.spec.norm_kind == "layer"
            size, overlap = hidden_spread(operation.activation, _variance(step), centers=centers)
            excess += (size - 2 * overlap - is_inner) / operation.width
    return excess


@cache
def hidden_spread(activation: str, variance: float, *, centers: bool) -> tuple[float, float]:
    """k and c of the module's docstring, for pre-activations of this variance.

    Examples:
        >>> size, overlap = hidden_spread("relu", 1.0, centers=False)
        >>> round(size, 1), round(overlap, 1)
        (5.0, 1.0)
    """
    phi = get_activation(activation)
    shift = gaussian_mean(phi.value, variance) if centers else 0.0

    def square(x: Array) -> Array:
        return (phi.value(x) - shift) ** 2

    def slope_square(x: Array) -> Array:
        return phi.derivative(x) ** 2

    second = gaussian_mean(square, variance)
    fourth = gaussian_mean(lambda x: square(x) ** 2, variance)
    joint = gaussian_mean(lambda x: square(x) * slope_square(x), variance)
    return fourth / second**2 - 1, joint / (second * gaussian_mean(slope_square, variance)) - 1


def _variance(step: Step) -> float:
    """Variance of the pre-activations, rounded so that branches alike share one result; 1 where the scale is idle."""
    assert isinstance(step.operation, Act)
    if get_activation(step.operation.activation).is_homogeneous:
        return 1.0
    return float(f"{math.exp(step.before.log_scale):.3g}")
