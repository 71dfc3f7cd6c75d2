"""How large the stream is after every branch of a linear stack, in logarithms."""

from __future__ import annotations

import math

from kilolayer.schemes.depth import Depth, Stack
from kilolayer.schemes.scales import BranchScales
from kilolayer.schemes.scheme import Scheme


def log_stream_variances(
    scheme: Scheme, depth: Depth, stack: Stack = "encoder", *, input_variance: float = 1.0
) -> list[float]:
    """Natural logarithm of the stream's variance after each branch, at initialization, for linear branches.

    A branch is ``W_last W_first`` with independent entries of variance ``gain^2 / fan_in``. Its output has
    variance ``u = g_last^2 g_first^2 v_in``, where ``v_in`` is the stream's variance v, or
    ``norm_output_scale^2`` behind a pre-norm; an inner norm sets the variance between the matrices to 1, an end
    norm that of the branch. Branches are independent of the skip, so the sum has variance

        ``skip_scale^2 v + branch_scale^2 u``

    and 1 behind a post-norm. Logarithms, because a plain residual stack doubles the variance per branch:
    10,000 branches are 10^3010.

    Raises:
        ValueError: an ``input_variance`` that is not positive and finite; a scheme that needs a profile.

    Examples:
        >>> from kilolayer.schemes import get_scheme
        >>> logs = log_stream_variances(get_scheme("residual"), Depth(encoder_layers=5000))
        >>> round(logs[-1] / math.log(2))
        10000
    """
    if not (math.isfinite(input_variance) and input_variance > 0):
        raise ValueError(f"input_variance must be positive and finite, got {input_variance}")
    log_variance = math.log(input_variance)
    logs = []
    for branch_index in range(depth.num_branches(stack)):
        log_variance = _after_branch(scheme.at(depth, branch_index, stack), log_variance)
        logs.append(log_variance)
    return logs


def _after_branch(scales: BranchScales, log_variance: float) -> float:
    if "post" in scales.norm_slots:
        return 0.0
    branch = _log_branch_variance(scales, log_variance)
    if not scales.has_skip:
        return branch
    return _log_add(_log_square(scales.skip_scale) + log_variance, _log_square(scales.branch_scale) + branch)


def _log_branch_variance(scales: BranchScales, log_variance: float) -> float:
    if "pre" in scales.norm_slots:
        log_variance = _log_square(scales.norm_output_scale)
    between = 0.0 if "inner" in scales.norm_slots else log_variance + _log_square(scales.gain("feedforward_in"))
    out = between + _log_square(scales.gain("feedforward_out"))
    return 0.0 if "end" in scales.norm_slots else out


def _log_square(factor: float) -> float:
    return 2 * math.log(factor) if factor else -math.inf


def _log_add(a: float, b: float) -> float:
    """log(exp a + exp b)."""
    high, low = max(a, b), min(a, b)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))
