"""One picture of runs next to each other: what happened over steps and depth, and what came of it."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kilolayer.report.files import replace_file
from kilolayer.report.fonts import drawable, font_families
from kilolayer.report.view import RunView

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from kilolayer.report.columns import Columns

MISSING_EXTRA = "the PNG picture needs matplotlib: pip install 'kilolayer[report]'"

RUNS_PER_BAND = 8
"""More runs go into a further band below."""

COLUMN_WIDTH, BAND_HEIGHT = 2.3, 8.2
LEFT, RIGHT, TITLE_HEIGHT, HEAD, FOOT = 0.85, 0.75, 0.55, 0.45, 1.05
"""Inches: a run's column, a band and the margins around it."""

DPI = 110


def save_png(runs: Sequence[RunView], path: str | Path, *, title: str) -> Path:
    """Draw runs next to each other into a PNG file.

    A column per run, at most eight side by side; rows show activation RMS, gradient norm and update ratio over steps
    (to the right) and blocks (upwards) on one color scale per quantity, then the loss. Under each column stand its
    outcome and cause. Non-finite cells are red and crossed; what was not recorded says so.

    Args:
        runs: what to draw, in order.
        path: the file; replaced when it exists.
        title: stands above.

    Returns:
        the path.

    Raises:
        ImportError: matplotlib (of the ``report`` extra) is not installed.

    Examples:
        >>> import tempfile
        >>> from kilolayer.recording import RecordingWriter
        >>> from kilolayer.report import RunView
        >>> save_png([RunView("a", RecordingWriter().close())], tempfile.mkdtemp() + "/a.png", title="one run").name
        'a.png'
    """
    return replace_file(Path(path), draw_png(runs, title=title))


def draw_png(runs: Sequence[RunView], *, title: str) -> bytes:
    """The picture of :func:`save_png` as bytes.

    Raises:
        ImportError: matplotlib (of the ``report`` extra) is not installed.

    Examples:
        >>> from kilolayer.recording import RecordingWriter
        >>> from kilolayer.report import RunView
        >>> draw_png([RunView("a", RecordingWriter().close())], title="one run")[1:4]
        b'PNG'
    """
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(MISSING_EXTRA) from error
    from kilolayer.report.columns import Columns

    bands = [runs[first : first + RUNS_PER_BAND] for first in range(0, max(len(runs), 1), RUNS_PER_BAND)]
    num_columns = max(max(len(band) for band in bands), 1)
    width, height = LEFT + COLUMN_WIDTH * num_columns + RIGHT, TITLE_HEIGHT + BAND_HEIGHT * len(bands)
    buffer = io.BytesIO()
    with rc_context({"font.family": font_families(), "font.size": 8, "axes.unicode_minus": False}):
        figure = Figure(figsize=(width, height), dpi=DPI, facecolor="white")
        heading = "\n".join(textwrap.wrap(drawable(title, limit=56 * num_columns), 30 * num_columns)[:2])
        figure.text(0.5, 1 - 0.6 * TITLE_HEIGHT / height, heading, size=12, ha="center", va="center", parse_math=False)
        columns = Columns(runs)
        for number, band in enumerate(bands):
            top = height - TITLE_HEIGHT - BAND_HEIGHT * number
            _draw_band(figure, columns, first=number * RUNS_PER_BAND, count=len(band), top=top)
        figure.savefig(buffer, format="png", metadata={"Software": "kilolayer"})
    return buffer.getvalue()


def _draw_band(figure: Figure, columns: Columns, *, first: int, count: int, top: float) -> None:
    """Draw ``count`` runs from number ``first`` on into the band whose upper edge lies at ``top`` inches."""
    width, height = figure.get_size_inches()
    grid = figure.add_gridspec(
        4, count + 1,
        width_ratios=[1.0] * count + [0.06], height_ratios=[1, 1, 1, 0.8], wspace=0.22, hspace=0.28,
        left=LEFT / width, right=(LEFT + COLUMN_WIDTH * count + 0.1) / width,
        top=(top - HEAD) / height, bottom=(top - BAND_HEIGHT + FOOT) / height,
    )  # fmt: skip
    for place in range(count):
        axes = [figure.add_subplot(grid[row, place]) for row in range(4)]
        columns.draw(axes, first + place, is_first=place == 0)
    for row in range(3):
        columns.draw_color_bar(figure.add_subplot(grid[row, count]), row)
