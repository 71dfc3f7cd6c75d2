"""Colors, shared scales and ticks: the same numbers get the same color in every run and every format."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kilolayer.report.grid import Grid
from kilolayer.report.text import format_number, trimmed

VIRIDIS = (
    "#440154", "#482475", "#414487", "#355f8d", "#2a788e", "#21918c",
    "#22a884", "#44bf70", "#7ad151", "#bddf26", "#fde725",
)  # fmt: skip
"""Eleven even stops of viridis: ordered by lightness too, so they survive color blindness and gray printing."""

NONFINITE_COLOR = "#d7263d"
"""Never used alone: non-finite cells carry a cross as well."""

CURVE_COLORS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9")
"""From the Okabe-Ito palette, told apart under the usual color blindness."""

CURVE_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")

MAX_DECADES = 6.0
MIN_DECADES = 1.0


@dataclass(frozen=True)
class ColorScale:
    """Ends of a color scale, as drawn (log10 on a log scale); values outside take the color of the end."""

    low: float
    high: float
    log: bool = True

    def label(self, share: float) -> str:
        """The number at a share (0..1) of the scale."""
        return scale_label(self.low + share * (self.high - self.low), log=self.log)


def scale_label(position: float, *, log: bool) -> str:
    """The number at a position on a (log10) scale."""
    if not log:
        return trimmed(format_number(position))
    if abs(position - round(position)) < 1e-9 and not -3 <= position < 4:
        return f"1e{round(position)}"
    number = 10.0**position if position < 308 else math.inf
    return trimmed(format_number(float(f"{number:.1e}"), digits=2 if abs(position) < 3 else 3))


def shared_scale(grids: Sequence[Grid]) -> ColorScale:
    """One color scale for the same quantity in several runs.

    Runs count equally, however long they lasted. The scale spans the 1st to the 99th percentile of each run, at
    least one decade and, with several runs, at most :data:`MAX_DECADES` about the middle one: a run that vanishes to
    1e-30 must not flatten the others to a single color.
    """
    log = grids[0].quantity.log if grids else True
    drawn = [grid.scaled[np.isfinite(grid.scaled)] for grid in grids]
    drawn = [values for values in drawn if len(values)]
    if not drawn:
        return ColorScale(-1.0, 1.0, log)
    low = min(float(np.percentile(values, 1)) for values in drawn)
    high = max(float(np.percentile(values, 99)) for values in drawn)
    if not log:
        return ColorScale(low, high if high > low else low + 1.0, log)
    if len(drawn) > 1:
        middle = float(np.median([np.median(values) for values in drawn]))
        low, high = max(low, middle - MAX_DECADES / 2), min(high, middle + MAX_DECADES / 2)
    return ColorScale(*widen(low, high), log)


def widen(low: float, high: float) -> tuple[float, float]:
    """The range, widened about its middle to at least :data:`MIN_DECADES`: a flat curve must look flat."""
    lacking = MIN_DECADES - (high - low)
    return (low - lacking / 2, high + lacking / 2) if lacking > 0 else (low, high)


def ticks(low: float, high: float, *, log: bool, count: int = 4) -> list[float]:
    """Positions of at most ``count`` round numbers within a range of the scale."""
    if not log:
        return _even_ticks(low, high, count)
    decades = range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1)
    if len(decades) >= 3 or (len(decades) == 2 and high - low >= 1.5):
        stride = math.ceil(len(decades) / count)
        return [float(decade) for decade in decades if decade % stride == 0] or [float(decades[0])]
    found: list[float] = []
    for digits in ((1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7)):
        found = [
            math.log10(digit) + decade
            for decade in range(math.floor(low) - 1, math.ceil(high) + 1)
            for digit in digits
            if low - 1e-9 <= math.log10(digit) + decade <= high + 1e-9
        ]
        if len(found) >= 2:
            break
    return found[:count]


def step_ticks(low: float, high: float, *, count: int = 4) -> list[int]:
    """At most about ``count`` whole steps to label within a range of steps, evenly spaced.

    Examples:
        >>> step_ticks(-0.5, 2.5), step_ticks(-0.5, 64.5)
        ([0, 1, 2], [0, 50])
    """
    step = max(round(_even_step(low, high, count)), 1)
    return list(range(math.ceil(low / step) * step, math.floor(high) + 1, step))


def _even_step(low: float, high: float, count: int) -> float:
    """The round distance between ``count`` ticks: 1, 2 or 5 times a power of ten."""
    raw = (high - low) / max(count - 1, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)


def _even_ticks(low: float, high: float, count: int) -> list[float]:
    if not high > low:
        return [low]
    step = _even_step(low, high, count)
    first = math.ceil(low / step - 1e-9)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)][:count]
