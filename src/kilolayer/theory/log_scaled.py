"""Arrays with a scale of their own, in logarithms: a residual stack without norms passes 10^300."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from kilolayer.theory.hermite import Array


@dataclass(frozen=True)
class LogScaled:
    """The array ``exp(log_scale) * values``."""

    values: Array
    log_scale: float = 0.0

    def times(self, factor: Array | float, log_factor: float = 0.0) -> LogScaled:
        """The product with ``exp(log_factor) * factor``."""
        return LogScaled(self.values * factor, self.log_scale + log_factor)

    def plus(self, other: LogScaled) -> LogScaled:
        """The sum, its values of order 1."""
        first, second = self.normalized(), other.normalized()
        top = max(first.log_scale, second.log_scale)
        if top == -math.inf:
            return first
        values = first.values * math.exp(first.log_scale - top) + second.values * math.exp(second.log_scale - top)
        return LogScaled(values, top)

    def normalized(self) -> LogScaled:
        """The same array with largest value 1."""
        largest = float(np.abs(self.values).max())
        if largest == 0 or self.log_scale == -math.inf:
            return LogScaled(np.zeros_like(self.values), -math.inf)
        return LogScaled(self.values / largest, self.log_scale + math.log(largest))
