"""One drawing of the HTML report: a quantity of a run over steps and depth, as data for ``report.js``."""

from __future__ import annotations

import base64
import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from kilolayer.report.grid import Grid
from kilolayer.report.lines import band_points, line_points, predicted_at
from kilolayer.report.numbers import prediction_text
from kilolayer.report.scale import ColorScale, scale_label, step_ticks, ticks, widen
from kilolayer.report.text import NAME_LIMIT, inert
from kilolayer.report.thin import chosen_steps, thin_grid
from kilolayer.report.view import Prediction


@dataclass(frozen=True)
class Budget:
    """How much one panel may hold, so that the whole file stays small however many runs it shows."""

    rows: int
    cells: int
    points: int

    @classmethod
    def share(cls, num_panels: int) -> Budget:
        """The share of one panel of what a file holds: 560,000 cells and 40,000 points of curves in all."""
        cells = 560_000 // max(num_panels, 1)
        return cls(min(max(math.isqrt(cells), 24), 256), cells, max(8_000 // max(num_panels, 1), 24))

    def columns(self, num_rows: int) -> int:
        """How many columns a panel with this many rows may have."""
        return min(max(self.cells // num_rows, 24), 512)


@dataclass
class Names:
    """Site names, each stored once: panels refer to them by number."""

    texts: list[str] = field(default_factory=list)
    _number: dict[str, int] = field(default_factory=dict)

    def number(self, name: str) -> int:
        """The number of a name, made inert when first seen."""
        if name not in self._number:
            self._number[name] = len(self.texts)
            self.texts.append(inert(name, limit=NAME_LIMIT))
        return self._number[name]


def depth_panel(
    grid: Grid, prediction: Prediction | None, *, scale: ColorScale, names: Names, budget: Budget
) -> dict[str, Any]:
    """Heat map and curves of one quantity.

    Positions along the depth count sites from 0; columns lie at their steps. Values are on their scale (log10
    or as they are), so that the drawing computes nothing but the text it shows.
    """
    num_rows = min(len(grid.sites), budget.rows)
    cells = thin_grid(grid, max_rows=num_rows, max_columns=budget.columns(num_rows))
    bounds = step_bounds(grid.steps)
    labels = grid.tick_places()
    curves = _curves(grid, budget.points)
    at, arrays = (np.zeros(0, dtype=int), {}) if prediction is None else predicted_at(grid, prediction)
    low, high = _reach(curves, arrays, scale)
    places = ticks(low, high, log=grid.quantity.log, count=3)
    return {
        "log": grid.quantity.log,
        "title": grid.quantity.title,
        "scale": [scale.low, scale.high],
        "codes": base64.b64encode(cells.codes.astype("<u2").tobytes()).decode(),
        "low": cells.low,
        "high": cells.high,
        "x_edges": bounds[cells.step_edges].tolist(),
        "y_edges": (cells.site_edges - 0.5).tolist(),
        "step_ticks": step_ticks(bounds[0], bounds[-1]),
        "step_spans": _spans(grid.steps, cells.step_edges),
        "row_sites": [[names.number(grid.sites[i].name), names.number(grid.sites[j - 1].name)]
                      for i, j in pairwise(cells.site_edges)],
        "row_predicted": _row_predictions(grid, prediction, cells.site_edges),
        "blocks": _block_spans(grid),
        "y_ticks": [labels, [str(grid.block_numbers[index]) for index in labels]],
        "bands": [[inert(band.label, limit=40), band.first - 0.5, band.end - 0.5] for band in grid.bands],
        "points": grid.is_mixed,
        "curves": curves,
        "predicted": _predicted(grid, at, arrays, reach=(low, high), limit=budget.points),
        "x_range": [low, high],
        "x_ticks": [places, [scale_label(place, log=grid.quantity.log) for place in places]],
        "nonfinite_step": grid.first_nonfinite_step,
    }  # fmt: skip


def step_bounds(steps: np.ndarray) -> np.ndarray:
    """Where a step's column begins and ends, midway between recorded steps: shape ``(num_steps + 1,)``."""
    middles = (steps[:-1] + steps[1:]) / 2
    first, last = (0.5, 0.5) if len(steps) < 2 else (middles[0] - steps[0], steps[-1] - middles[-1])
    return np.concatenate([[steps[0] - first], middles, [steps[-1] + last]])


def _spans(steps: np.ndarray, edges: np.ndarray) -> list[list[int]]:
    return [[int(steps[i]), int(steps[j - 1])] for i, j in pairwise(edges)]


def _block_spans(grid: Grid) -> list[list[float]]:
    """``[block number, from, to]`` along the depth, one per block and band, for the selection of a block."""
    spans: list[list[float]] = []
    for place, block in enumerate(grid.block_numbers):
        if spans and spans[-1][0] == block and all(band.first != place for band in grid.bands):
            spans[-1][2] = place + 0.5
        else:
            spans.append([block, place - 0.5, place + 0.5])
    return spans


def _curves(grid: Grid, limit: int) -> list[dict[str, Any]]:
    places = np.arange(len(grid.sites))
    return [
        {"step": int(grid.steps[index]), **line_points(grid, places, grid.scaled[index], limit)}
        for index in chosen_steps(grid.steps, grid.first_nonfinite_step)
    ]


def _row_predictions(grid: Grid, prediction: Prediction | None, edges: np.ndarray) -> list[str]:
    """What theory expects at the first site of each row at step 0, as text."""
    if prediction is None:
        return []
    return [prediction_text(prediction, grid.sites[first].name) for first in edges[:-1]]


def _reach(curves: list[dict[str, Any]], predicted: dict[str, np.ndarray], scale: ColorScale) -> tuple[float, float]:
    """The range the curves of a panel need; the color scale's where none has a point."""
    drawn = [point for curve in curves for point in curve["x"] if point is not None]
    drawn += [float(point) for values in predicted.values() for point in values[np.isfinite(values)]]
    if not drawn:
        return scale.low, scale.high
    low, high = min(drawn), max(drawn)
    low, high = widen(low, high) if scale.log else (low, high if high > low else low + 1.0)
    margin = 0.04 * (high - low)
    return low - margin, high + margin


def _predicted(
    grid: Grid, places: np.ndarray, arrays: dict[str, np.ndarray], *, reach: tuple[float, float], limit: int
) -> dict[str, Any] | None:
    """Theory's line and, where it gives one, its band; ``None`` where it says nothing of these sites."""
    if not len(places):
        return None
    drawn: dict[str, Any] = {"line": line_points(grid, places, arrays["value"], limit)}
    if "low" in arrays:
        drawn["band"] = band_points(grid, places, arrays, reach=reach, limit=limit)
    return drawn
