"""Small pieces of HTML for notebooks: a frame, tables, sparklines. Text is escaped here and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from kilolayer.report.scale import NONFINITE_COLOR
from kilolayer.report.text import to_html
from kilolayer.report.thin import bin_edges

WIDTH, HEIGHT = 160, 24
"""Pixels of a sparkline."""

MAX_POINTS = 80

SEVERITY_COLORS = {"error": "#b3261e", "warning": "#8a5a00", "info": "#0a58a8"}

_CELL = "text-align:left;padding:1px 10px 1px 0;vertical-align:top"


class Html(str):
    """Text that is HTML already; any other text is escaped when it is put into a piece."""


def escaped(content: Any) -> Html:
    """HTML as it is, anything else as text."""
    return content if isinstance(content, Html) else Html(to_html(content))


def frame(title: Any, *parts: Html, color: str = "currentColor") -> Html:
    """A titled piece with a colored edge; it takes its other colors from the notebook, dark or light."""
    style = f"border-left:4px solid {color};padding:2px 0 2px 10px;margin:4px 0;max-width:60em"
    return Html(f'<div style="{style}"><div><b>{escaped(title)}</b></div>{"".join(parts)}</div>')


def line(content: Any) -> Html:
    """One line of text."""
    return Html(f"<div>{escaped(content)}</div>")


def table(header: Sequence[Any], rows: Sequence[Sequence[Any]]) -> Html:
    """A table; cells that are no :class:`Html` are text."""
    head = "".join(f'<th style="{_CELL}">{escaped(cell)}</th>' for cell in header)
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{escaped(cell)}</td>' for cell in row) + "</tr>" for row in rows
    )
    return Html(f'<table style="border-collapse:collapse"><tr>{head}</tr>{body}</table>')


def preformatted(text: Any) -> Html:
    """Lines of text as they are, each escaped on its own, so that their ends stay ends."""
    lines = [to_html(one) for one in str(text).split("\n")]
    return Html(f'<pre style="margin:4px 0">{chr(10).join(lines)}</pre>')


def svg_sparkline(values: np.ndarray, nonfinite: np.ndarray | None = None, *, min_span: float = 1.0) -> Html:
    """A curve as a picture of a line's height, from its lowest to its highest value.

    Args:
        values: the curve on the scale it is drawn on, shape ``(num_points,)``; NaN where there is no value.
        nonfinite: where what was measured is not finite, same shape; marked in red at the upper edge.
        min_span: range that fills the height at least.
    """
    curve = np.array(values, dtype=np.float64)
    bad = ~np.isfinite(curve) & ~np.isnan(curve)
    if nonfinite is not None:
        bad |= np.asarray(nonfinite, dtype=bool)
    curve[bad] = np.nan
    known = curve[np.isfinite(curve)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 0.0)
    lacking = max(min_span - (high - low), 0.0)
    low, span = low - lacking / 2, high - low + lacking
    across = WIDTH / max(len(curve) - 1, 1)
    strokes = "".join(
        _polyline(inside * across, HEIGHT - 2 - (curve[inside] - low) / span * (HEIGHT - 4)) for inside in _runs(curve)
    )
    marks = "".join(
        f'<rect x="{place * across:.1f}" y="0" width="{max(across, 1.5):.1f}" height="4" fill="{NONFINITE_COLOR}"/>'
        for place in _few(np.flatnonzero(bad))
    )
    box = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
    return Html(f'<svg {box} aria-label="curve">{strokes}{marks}</svg>')


def _polyline(x: np.ndarray, y: np.ndarray) -> str:
    points = " ".join(f"{one:.1f},{other:.1f}" for one, other in zip(x, y, strict=True))
    if len(x) == 1:
        return f'<circle cx="{x[0]:.1f}" cy="{y[0]:.1f}" r="1.5" fill="currentColor"/>'
    return f'<polyline points="{points}" fill="none" stroke="currentColor" stroke-width="1.3"/>'


def _runs(curve: np.ndarray) -> list[np.ndarray]:
    """Indices of each stretch of known values, thinned to the lowest and the highest of every bin."""
    places = np.flatnonzero(np.isfinite(curve))
    if not len(places):
        return []
    kept: list[np.ndarray] = []
    for run in np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)[:MAX_POINTS]:
        ends = {int(run[0]), int(run[-1])}
        for first, end in pairwise(bin_edges(len(run), MAX_POINTS)):
            inside = run[first:end]
            ends |= {int(inside[np.argmin(curve[inside])]), int(inside[np.argmax(curve[inside])])}
        kept.append(np.array(sorted(ends)))
    return kept


def _few(places: np.ndarray) -> np.ndarray:
    return places[:: max(len(places) // MAX_POINTS, 1)]
