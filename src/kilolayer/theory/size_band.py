"""A size at every depth, and how far a draw of the weights may lie from it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kilolayer.theory.hermite import Array

BAND = 1.959964
"""Standard normal deviations on either side that hold 95 %."""


@dataclass(frozen=True)
class SizeBand:
    """A size per position, log-normal over draws of the weights.

    Attributes:
        log_median: natural logarithm of the median.
        log_std: standard deviation of that logarithm.

    Examples:
        >>> import numpy as np
        >>> band = SizeBand(np.log([1.0, 2.0]), np.array([0.0, 0.1]))
        >>> band.median.round(2).tolist()
        [1.0, 2.0]
    """

    log_median: Array
    log_std: Array

    @property
    def median(self) -> Array:
        """The median; ``inf`` or 0 past the range of float64."""
        return _exp_or_inf(self.log_median)

    @property
    def low(self) -> Array:
        """Lower end of the 95 % band."""
        return _exp_or_inf(self.log_median - BAND * self.log_std)

    @property
    def high(self) -> Array:
        """Upper end of the 95 % band."""
        return _exp_or_inf(self.log_median + BAND * self.log_std)

    @property
    def rates(self) -> Array:
        """Factor from each position to the next. Shape: one less than ``log_median``."""
        return np.exp(np.diff(self.log_median))


def from_mean(log_means: Array, log_variances: Array) -> SizeBand:
    """The RMS of log-normal second moments, from the logarithms of their means; medians lie half the variance below."""
    return SizeBand(0.5 * (log_means - 0.5 * log_variances), 0.5 * np.sqrt(log_variances))


def _exp_or_inf(values: Array) -> Array:
    with np.errstate(over="ignore", under="ignore"):
        return np.exp(values)
