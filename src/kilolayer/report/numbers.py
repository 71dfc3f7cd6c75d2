"""A grid as a small table of numbers: for readers without pictures, and for those who want the figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kilolayer.report.grid import Grid
from kilolayer.report.text import NAME_LIMIT, NOT_RECORDED, format_number, format_range, format_value, inert
from kilolayer.report.thin import chosen_steps
from kilolayer.report.view import Prediction

MAX_EVIDENCE = 40
"""Rows of evidence shown for one finding."""


@dataclass(frozen=True)
class NumberTable:
    """A header and rows of text."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def number_table(grid: Grid, prediction: Prediction | None) -> NumberTable:
    """A few blocks by a few steps, beside what theory predicts at step 0."""
    steps = sorted({*chosen_steps(grid.steps, grid.first_nonfinite_step).tolist(), len(grid.steps) - 1})
    header = ["block", "site", *(f"step {grid.steps[index]}" for index in steps)]
    if prediction is not None:
        header.append("predicted at step 0")
    rows = []
    for place in grid.tick_places(at_most=9):
        name = grid.sites[place].name
        row = [str(grid.block_numbers[place]), inert(name, limit=NAME_LIMIT)]
        row += [cell_text(grid, step_index=index, site_index=place) for index in steps]
        if prediction is not None:
            row.append(prediction_text(prediction, name))
        rows.append(tuple(row))
    return NumberTable(tuple(header), tuple(rows))


def cell_text(grid: Grid, *, step_index: int, site_index: int) -> str:
    """One value as text, telling what is missing from what is not finite."""
    value = grid.values[step_index, site_index]
    if not grid.recorded[step_index, site_index]:
        return NOT_RECORDED
    if grid.nonfinite[step_index, site_index] and np.isfinite(value):
        return f"{format_number(value)}, non-finite elements"
    return format_number(value)


def prediction_text(prediction: Prediction, site: str) -> str:
    """The value theory expects at a site, with its band: ``1.3 (1.1-1.6)``; ``-`` where it says nothing."""
    if site not in prediction.sites:
        return "-"
    index = prediction.sites.index(site)
    value = format_number(prediction.value[index])
    if prediction.low is None or prediction.high is None:
        return value
    return f"{value} ({format_range(prediction.low[index], prediction.high[index])})"


def evidence_table(rows: Sequence[Mapping[str, Any]]) -> NumberTable | None:
    """The rows a finding rests on, one column per name; ``None`` where it keeps none."""
    if not rows:
        return None
    columns = list(dict.fromkeys(name for row in rows for name in row))
    cells = [tuple(format_value(row[name]) if name in row else "-" for name in columns) for row in rows[:MAX_EVIDENCE]]
    return NumberTable(tuple(format_value(name) for name in columns), tuple(cells))
