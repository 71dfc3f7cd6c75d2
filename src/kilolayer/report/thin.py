"""Making pictures small without losing what they are looked at for: the extremes and the non-finite values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from kilolayer.report.grid import Grid

MISSING, NONFINITE, ZERO, FIRST_CODE = 0, 1, 2, 3
"""Codes of a cell: no row, not finite, no value on the scale (exactly zero on a log scale); values from
``FIRST_CODE`` on."""

_LAST_CODE = 65_535


@dataclass(frozen=True, eq=False)
class Cells:
    """A grid as drawn: cell (row, column) shows the most extreme value among its sites and steps.

    ``site_edges`` and ``step_edges`` hold the first index of each bin and the end, shapes ``(num_rows + 1,)``
    and ``(num_columns + 1,)``. ``codes`` (uint16, ``(num_rows, num_columns)``) are :data:`MISSING`,
    :data:`NONFINITE`, :data:`ZERO`, or the value on its scale, spread evenly over ``low`` to ``high``.
    """

    site_edges: np.ndarray
    step_edges: np.ndarray
    codes: np.ndarray
    low: float
    high: float

    @property
    def values(self) -> np.ndarray:
        """Values on their scale, ``(num_rows, num_columns)``; NaN where there is none."""
        span = (self.high - self.low) / (_LAST_CODE - FIRST_CODE)
        values = self.low + (self.codes.astype(np.float64) - FIRST_CODE) * span
        return np.where(self.codes >= FIRST_CODE, values, np.nan)


def bin_edges(count: int, limit: int) -> np.ndarray:
    """Edges of at most ``limit`` bins over ``count`` items, shape ``(num_bins + 1,)``.

    Bins are of one size, but for the last: uneven ones would show as stripes.
    """
    size = max(math.ceil(count / limit), 1)
    return np.append(np.arange(0, count, size), count)


def thin_grid(grid: Grid, *, max_rows: int, max_columns: int) -> Cells:
    """Down-sample a grid to at most ``max_rows`` x ``max_columns`` cells.

    Each cell keeps the value of its steps and sites farthest from the grid's median; a non-finite value
    counts as farthest of all, then an exact zero.
    """
    scaled = grid.scaled
    finite = np.isfinite(scaled)
    middle = float(np.median(scaled[finite])) if finite.any() else 0.0
    distance = np.where(finite, np.abs(scaled - middle), -1.0)
    distance[grid.recorded & ~finite] = np.finfo(np.float64).max
    distance[grid.nonfinite] = np.inf
    step_edges, site_edges = bin_edges(len(grid.steps), max_columns), _band_edges(grid, max_rows)
    codes, low, high = _encode(grid, scaled)
    codes, distance = _keep_farthest(codes, distance, step_edges)
    codes, _ = _keep_farthest(codes.T, distance.T, site_edges)
    return Cells(site_edges, step_edges, codes, low, high)


def _band_edges(grid: Grid, max_rows: int) -> np.ndarray:
    """Edges over the sites; no bin holds sites of two bands."""
    limit = max(max_rows // len(grid.bands), 1)
    edges = [band.first + bin_edges(band.end - band.first, limit)[:-1] for band in grid.bands]
    return np.append(np.concatenate(edges), len(grid.sites))


def _encode(grid: Grid, scaled: np.ndarray) -> tuple[np.ndarray, float, float]:
    finite = np.isfinite(scaled)
    low, high = (float(scaled[finite].min()), float(scaled[finite].max())) if finite.any() else (0.0, 0.0)
    high = max(high, low + 1e-6)
    codes = np.full(scaled.shape, MISSING, np.uint16)
    codes[grid.recorded] = ZERO
    share = (scaled[finite] - low) / (high - low)
    codes[finite] = np.round(FIRST_CODE + share * (_LAST_CODE - FIRST_CODE)).astype(np.uint16)
    codes[grid.nonfinite] = NONFINITE
    return codes, low, high


def _keep_farthest(codes: np.ndarray, distance: np.ndarray, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Reduce axis 0 to one row per bin: per column the entry of greatest distance."""
    if len(edges) == len(codes) + 1:
        return codes, distance
    columns = np.arange(codes.shape[1])
    picked = np.stack([first + np.argmax(distance[first:end], axis=0) for first, end in pairwise(edges)])
    return codes[picked, columns], distance[picked, columns]


def thin_curve(values: np.ndarray, limit: int) -> np.ndarray:
    """Indices of at most ``limit`` points of a curve, ascending: lowest and highest of every bin, both ends
    and the first value that is not finite."""
    count = len(values)
    if count <= limit:
        return np.arange(count)
    finite = np.isfinite(values)
    kept = {0, count - 1}
    if not finite.all():
        kept.add(int(np.argmin(finite)))
    edges = bin_edges(count, max((limit - len(kept)) // 2, 1))
    for first, end in pairwise(edges):
        inside = np.flatnonzero(finite[first:end])
        if len(inside):
            part = values[first:end][inside]
            kept.update((int(first + inside[np.argmin(part)]), int(first + inside[np.argmax(part)])))
    return np.array(sorted(kept))


def chosen_steps(steps: np.ndarray, nonfinite_step: int | None = None, *, count: int = 4) -> np.ndarray:
    """At most ``count`` indices of steps worth a curve: the first, the last (before ``nonfinite_step``, since
    nothing can be drawn from there on), and geometrically between."""
    usable = steps if nonfinite_step is None else steps[steps < nonfinite_step]
    last = max(len(usable), 1) - 1
    wanted = np.concatenate([[0], np.geomspace(1, max(last, 1), count - 1)]) if last else np.zeros(1)
    return np.unique(np.round(wanted).astype(int))


def on_log_scale(values: np.ndarray) -> np.ndarray:
    """log10 of positive numbers, shape kept; infinite where a value is not finite, NaN where it is not positive."""
    values = np.asarray(values, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = np.log10(values)
    return np.where(np.isfinite(values), np.where(np.isfinite(scaled), scaled, np.nan), np.inf)
