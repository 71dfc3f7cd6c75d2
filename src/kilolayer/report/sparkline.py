"""A curve along the depth in one line of text."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from kilolayer.report.thin import bin_edges

BARS = "▁▂▃▄▅▆▇█"
ASCII_BARS = "_.-~=+*#"
TO_ASCII = str.maketrans(BARS, ASCII_BARS)
"""For ``str.translate``, where a console has ASCII only."""

NONFINITE_MARK, MISSING_MARK = "x", " "


def sparkline(
    values: np.ndarray, nonfinite: np.ndarray | None = None, *, width: int = 32, min_span: float = 1.0
) -> str:
    """Bars of a curve, from its lowest to its highest value.

    Args:
        values: the curve on the scale it is drawn on (log10 or as it is), shape ``(num_points,)``; NaN where there
            is no value, shown as a blank.
        nonfinite: where what was measured is not finite, shape ``(num_points,)``; shown as ``x``.
        width: most characters; each shows the value farthest from the curve's median among those it covers.
        min_span: range that fills the height at least, so that noise on a flat curve stays flat.

    Examples:
        >>> sparkline(np.array([0.0, 1.0, 2.0, 3.0])), sparkline(np.array([0.01, -0.01]))
        ('▁▃▆█', '▅▄')
    """
    curve = np.array(values, dtype=np.float64)
    if not len(curve):
        return ""
    if nonfinite is not None:
        curve[np.asarray(nonfinite, dtype=bool)] = np.inf
    finite = np.isfinite(curve)
    middle = float(np.median(curve[finite])) if finite.any() else 0.0
    low, span = _reach(curve[finite], min_span)
    distance = np.where(finite, np.abs(curve - middle), np.where(np.isnan(curve), -1.0, np.inf))
    places = [first + int(np.argmax(distance[first:end])) for first, end in pairwise(bin_edges(len(curve), width))]
    return "".join(_mark(curve[place], low, span) for place in places)


def _reach(finite: np.ndarray, min_span: float) -> tuple[float, float]:
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
    lacking = max(min_span - (high - low), 0.0)
    return low - lacking / 2, max(high - low + lacking, 1e-12)


def _mark(value: float, low: float, span: float) -> str:
    if np.isnan(value):
        return MISSING_MARK
    if np.isinf(value):
        return NONFINITE_MARK
    return BARS[min(max(round((value - low) / span * 7), 0), 7)]
