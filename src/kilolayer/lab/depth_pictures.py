"""Pictures of the labs that compare schemes: panels side by side, one color and dash per scheme, ranges over seeds."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kilolayer.report.files import replace_file
from kilolayer.report.fonts import drawable, font_families
from kilolayer.report.png import MISSING_EXTRA

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8B6914")
"""Told apart by eyes that see few colors (Okabe and Ito 2008, with a brown for the yellow that white swallows)."""
DASHES = ("-", "--", "-.", ":")
"""A dash of its own for every round through the colors."""

PANEL_WIDTH, PANEL_HEIGHT, HEAD, FOOT = 5.2, 3.6, 0.7, 0.35
"""Inches: a panel, the title's place, and that of one row of the legend."""
LEGEND_COLUMNS = 4
DPI = 110

Panel = Callable[["Axes"], None]
"""Draws into the axes it is given, with labels of its own."""


def style_of(number: int) -> dict[str, Any]:
    """Color and dash of the scheme with this number."""
    return {"color": COLORS[number % len(COLORS)], "linestyle": DASHES[number // len(COLORS) % len(DASHES)]}


def draw_panels(panels: Sequence[Sequence[Panel]], *, title: str) -> bytes:
    """Rows of panels above one legend of what the first panel names, as PNG.

    Raises:
        ImportError: matplotlib (of the ``report`` extra) is not installed.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(MISSING_EXTRA) from error
    num_columns = max(map(len, panels))
    width, height = PANEL_WIDTH * num_columns, PANEL_HEIGHT * len(panels) + HEAD
    buffer = io.BytesIO()
    with rc_context({"font.family": font_families(), "font.size": 8, "axes.unicode_minus": False}):
        figure = Figure(figsize=(width, height), dpi=DPI, facecolor="white", layout="constrained")
        heading = "\n".join(textwrap.wrap(drawable(title, limit=110 * num_columns), 62 * num_columns))
        figure.suptitle(heading, size=11, parse_math=False)
        grid = figure.subplots(len(panels), num_columns, squeeze=False)
        for row, row_of_axes in zip(panels, grid, strict=True):
            for axes, panel in zip(row_of_axes, row, strict=False):
                panel(axes)
                axes.grid(alpha=0.25, linewidth=0.5)
            for axes in row_of_axes[len(row) :]:
                axes.set_axis_off()
        handles, labels = grid[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=LEGEND_COLUMNS, frameon=False)
        figure.savefig(buffer, format="png", metadata={"Software": "kilolayer"})
    return buffer.getvalue()


def draw_curves(axes: Axes, places: np.ndarray, curves: np.ndarray, *, label: str, number: int) -> None:
    """The median over seeds, with the range over them behind it.

    Shape:
        - places: ``(num_places,)``
        - curves: ``(num_seeds, num_places)``; what is not finite leaves a gap.
    """
    axes.plot(places, np.median(curves, axis=0), label=drawable(label), linewidth=1.4, **style_of(number))
    if len(curves) > 1:
        low, high = curves.min(axis=0), curves.max(axis=0)
        axes.fill_between(places, low, high, color=style_of(number)["color"], alpha=0.15, linewidth=0)


def scale_height_by_log(axes: Axes) -> None:
    """A logarithmic height, which needs a number above 0: where nothing drawn is, the panel says so."""
    if has_height(axes):
        axes.set_yscale("log")
    else:
        axes.text(0.5, 0.5, "all 0 or not finite", transform=axes.transAxes, ha="center", va="center")


def has_height(axes: Axes) -> bool:
    """Whether a line has a finite point above 0, which has a logarithm."""
    heights = [np.asarray(line.get_ydata(), dtype=np.float64) for line in axes.get_lines()]
    return any(bool((np.isfinite(one) & (one > 0)).any()) for one in heights)


def save_picture(path: Path, draw: Callable[[], bytes]) -> str:
    """Write a picture, and say where it is, or why there is none."""
    try:
        return f"Picture: {replace_file(path, draw())}"
    except ImportError as error:
        return f"No picture: {error}"
