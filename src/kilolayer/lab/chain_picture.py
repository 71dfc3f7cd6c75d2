"""The picture of ``kilolayer lab chain``: a panel per quantity, predicted lines and measured dots."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from kilolayer.lab.chain_experiment import PARTS, Row

MISSING_EXTRA = "the PNG picture needs matplotlib: pip install 'kilolayer[report]'"
PANEL = (4.6, 3.6)
COLUMNS = 4
DPI = 110
DECADE = 10
"""Values that lie closer together than this factor need no logarithm."""


def draw_png(rows: Sequence[Row]) -> bytes:
    """One panel per part and quantity: dots for seeds, lines and bands for theory.

    Raises:
        ImportError: matplotlib (of the ``report`` extra) is not installed.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(MISSING_EXTRA) from error
    panels: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        panels.setdefault((row.part, row.key.quantity), []).append(row)
    colors: dict[str, dict[str, str]] = {}  # a case has one color in all panels of its part
    for row in rows:
        of_part = colors.setdefault(row.part, {})
        of_part.setdefault(row.key.case, f"C{len(of_part)}")
    height = math.ceil(len(panels) / COLUMNS)
    buffer = io.BytesIO()
    with rc_context({"font.size": 7}):
        figure = Figure(figsize=(PANEL[0] * COLUMNS, PANEL[1] * height), dpi=DPI, layout="constrained")
        for axis, ((part, quantity), members) in zip(
            figure.subplots(height, COLUMNS, squeeze=False).flat, panels.items(), strict=False
        ):
            axis.set_title(f"{part}: {quantity}")
            axis.grid(alpha=0.25)
            if len({row.key.at for row in members}) > 1:
                _along_depth(axis, members, colors[part])
            else:
                _by_case(axis, members)
        for axis in figure.axes[len(panels) :]:
            axis.set_axis_off()
        figure.savefig(buffer, format="png", metadata={"Software": "kilolayer"})
    return buffer.getvalue()


def _along_depth(axis: Any, rows: Sequence[Row], colors: dict[str, str]) -> None:
    """Dots and lines of each case in its color."""
    for case in dict.fromkeys(row.key.case for row in rows):
        mine = sorted((row for row in rows if row.key.case == case), key=lambda row: row.key.at)
        if any(row.expected is not None and row.expected.value == 0 for row in mine):
            continue  # what is measured there is rounding, and has no place on a logarithmic axis
        dots = [(row.key.at, value) for row in mine for value in row.measured if 0 < value < math.inf]
        color = colors[case]
        if dots:
            axis.plot(*zip(*dots, strict=True), "o", markersize=3, label=case, color=color)
        known = [(row.key.at, row.expected) for row in mine if row.expected is not None and row.expected.value > 0]
        if known and dots:
            axis.plot([at for at, _ in known], [expected.value for _, expected in known], color=color, linewidth=1)
            bands = [(at, one.low, one.high) for at, one in known if one.low is not None and one.high is not None]
            if bands:
                axis.fill_between(*zip(*bands, strict=True), color=color, alpha=0.12)
    axis.set_xlabel(next(part.unit for part in PARTS if part.name == rows[0].part))
    if axis.lines:
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.legend(fontsize=6)


def _by_case(axis: Any, rows: Sequence[Row]) -> None:
    """A line per case; crosses are predictions."""
    places = np.arange(len(rows))
    for place, row in zip(places, rows, strict=True):
        seen = [value for value in row.measured if math.isfinite(value)]
        axis.plot(seen, [place] * len(seen), "o", markersize=3, color="#0072B2")
        if row.expected is not None:
            axis.plot(row.expected.value, place, "x", color="#D55E00")
    axis.set_yticks(places, [row.key.case for row in rows])
    axis.set_ylim(len(rows) - 0.5, -0.5)
    values = [value for row in rows for value in row.measured]
    if all(0 < value < math.inf for value in values) and max(values) > DECADE * min(values):
        axis.set_xscale("log")
        axis.xaxis.set_minor_formatter("")  # labels of every step in a decade would run into each other
