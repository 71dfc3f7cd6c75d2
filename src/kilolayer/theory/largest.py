"""The largest of many Gaussian activations."""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from kilolayer.theory.hermite import Array

_BISECTIONS = 60
_TYPICAL = 4.0
"""Where the tails are compared: the largest of 10^4 standard normal variables."""
_NODES = np.linspace(-8.0, 8.0, 161)


def largest_of_tensors(log_rms: Array, *, counts: Array) -> float:
    """Median of the largest absolute value among independent Gaussians of several sizes.

    The x at which ``sum_t counts_t P(|z| > x / rms_t) = ln 2``: the expected number of larger values is then that
    of a Poisson count that is 0 half of the time.

    Args:
        log_rms: natural logarithm of the RMS of each tensor. Shape: ``(tensors,)``.
        counts: independent entries of each tensor. Shape: ``(tensors,)``.

    Raises:
        ValueError: fewer than one entry in all.

    Examples:
        >>> round(largest_of_tensors(np.zeros(1), counts=np.array([10_000.0])), 2)
        3.98

    Reference: Leadbetter et al. 1983, Extremes and Related Properties of Random Sequences, theorem 1.5.1.
    """
    if counts.sum() < 1:
        raise ValueError(f"counts must add up to at least one entry, got {counts.sum()}")
    top = float(log_rms.max())
    relative = np.exp(np.maximum(log_rms - top, -600.0))
    low, high = 0.0, 40.0
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        tails = np.array([math.erfc(middle / (size * math.sqrt(2))) for size in relative])
        low, high = (middle, high) if float(counts @ tails) > math.log(2) else (low, middle)
    log_largest = top + math.log(high)
    return math.exp(log_largest) if log_largest < math.log(np.finfo(float).max) else math.inf


@cache
def effective_count(count: int, cosine: float) -> float:
    """How many independent Gaussians have as large a maximum as ``count`` of them with this cosine.

    ``P(max > x) / P(z > x)`` at x = 4, where ``z_i = sqrt(c) a + sqrt(1 - c) b_i`` and so
    ``P(max > x) = 1 - E_a P(b < (x - sqrt(c) a) / sqrt(1 - c))^count``. A cosine below 0 counts as 0.

    Examples:
        >>> round(effective_count(64, 0.0)), round(effective_count(64, 0.9)), round(effective_count(64, 1.0))
        (64, 11, 1)
    """
    shared = min(max(cosine, 0.0), 1 - 1e-9)
    density = np.exp(-0.5 * _NODES**2)
    # log1p keeps tails of 10^-12, which 1 minus a distribution function would lose.
    tails = np.array([_tail((_TYPICAL - math.sqrt(shared) * a) / math.sqrt(1 - shared)) for a in _NODES])
    exceeds = -np.expm1(count * np.log1p(-np.minimum(tails, 1 - 1e-12)))
    return float(exceeds @ density / density.sum()) / _tail(_TYPICAL)


def _tail(x: float) -> float:
    return 0.5 * math.erfc(x / math.sqrt(2))
