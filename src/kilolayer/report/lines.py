"""Lines and bands along the depth: they join neighboring sites that play the same part, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from kilolayer.report.grid import Grid
from kilolayer.report.thin import thin_curve
from kilolayer.report.view import Prediction

HALF_HEIGHT = 0.45
"""A site without a neighbor to be joined with is drawn this far up and down, in sites: a point alone has no line."""

FEWEST_POINTS = 4
"""Ends and extremes of one stretch."""

Points = dict[str, list[float | None]]
"""``x`` and ``y`` of a drawing; ``None`` where the pen is lifted."""


def predicted_at(grid: Grid, prediction: Prediction) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Where a prediction lies along the depth of a grid, and its value, low and high on the grid's scale.

    A number that the scale has no place for is NaN; a zero on a log scale is ``-inf``.
    """
    place = {site.name: index for index, site in enumerate(grid.sites)}
    known = [index for index, name in enumerate(prediction.sites) if name in place]
    places = np.array([place[prediction.sites[index]] for index in known], dtype=int)
    order = np.argsort(places, kind="stable")
    kept = np.array(known, dtype=int)[order]
    arrays = {"value": prediction.value, "low": prediction.low, "high": prediction.high}
    return places[order], {name: _on_scale(array[kept], grid) for name, array in arrays.items() if array is not None}


def _on_scale(values: np.ndarray, grid: Grid) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log10(values) if grid.quantity.log else np.asarray(values)


def stretches(grid: Grid, places: np.ndarray, shown: np.ndarray, limit: int) -> list[np.ndarray]:
    """Indices into ``places`` of the points one line may join: shown, next to each other, in one band of the grid.

    Of more stretches than ``limit`` every n-th is kept.

    Shape:
        - places (ascending), shown: ``(num_points,)``
    """
    points = np.flatnonzero(shown)
    if not len(points):
        return []
    at = places[points]
    apart = (np.diff(at) > 1) | np.isin(at[1:], _line_starts(grid))
    found = np.split(points, np.flatnonzero(apart) + 1)
    return found[:: math.ceil(len(found) / limit)]


def _line_starts(grid: Grid) -> Sequence[int]:
    """Sites that no line comes to from the site before: like stands beside like only inside a band."""
    return range(len(grid.sites)) if grid.is_mixed else [band.first for band in grid.bands]


def line_points(grid: Grid, places: np.ndarray, values: np.ndarray, limit: int) -> Points:
    """A curve along the depth: values on their scale at the given sites, thinned to about ``limit`` points.

    Points on their own where the grid mixes unlike sites.
    """
    if grid.is_mixed:
        kept = thin_curve(values, limit)
        return {"x": rounded(values[kept]), "y": rounded(places[kept])}
    xs, ys = [], []
    for inside in stretches(grid, places, np.isfinite(values), limit):
        kept = inside[thin_curve(values[inside], _share(limit, len(inside), len(values)))]
        y, x = _stretched(places[kept], values[kept])
        xs.append(x)
        ys.append(y)
    return {"x": _joined(xs), "y": _joined(ys)}


def band_points(
    grid: Grid, places: np.ndarray, arrays: dict[str, np.ndarray], *, reach: tuple[float, float], limit: int
) -> Points:
    """The outline of a predicted band: one closed shape per stretch, up its lower end and down its upper one.

    An end beyond the scale (zero on a log scale, or infinite) lies at the end of ``reach``.
    """
    low, high = (np.nan_to_num(arrays[name], nan=np.nan, neginf=reach[0], posinf=reach[1]) for name in ("low", "high"))
    xs, ys = [], []
    for inside in stretches(grid, places, np.isfinite(low) & np.isfinite(high), limit):
        kept = inside[thin_curve(high[inside], _share(limit, len(inside), len(places)))]
        y, left, right = _stretched(places[kept], low[kept], high[kept])
        xs.append(np.concatenate([left, right[::-1]]))
        ys.append(np.concatenate([y, y[::-1]]))
    return {"x": _joined(xs), "y": _joined(ys)}


def _share(limit: int, length: int, total: int) -> int:
    return max(limit * length // total, FEWEST_POINTS)


def _stretched(places: np.ndarray, *arrays: np.ndarray) -> list[np.ndarray]:
    """Places and values of a stretch; a single site is drawn over the height of its row."""
    if len(places) > 1:
        return [places.astype(np.float64), *arrays]
    return [places[0] + np.array([-HALF_HEIGHT, HALF_HEIGHT]), *(np.repeat(array, 2) for array in arrays)]


def _joined(parts: Sequence[np.ndarray]) -> list[float | None]:
    joined: list[float | None] = []
    for part in parts:
        joined += ([None] if joined else []) + rounded(part)
    return joined


def rounded(values: np.ndarray) -> list[float | None]:
    """Values for a file, to six digits; ``None`` where not finite."""
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in values]
