"""The tables of ``kilolayer lab chain``, and what they come to in one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Console

from kilolayer.lab.chain_experiment import PARTS, Row
from kilolayer.lab.chain_products import RANK
from kilolayer.lab.chain_run import ChainPart, Expected
from kilolayer.report import format_number, render_table


def print_rows(rows: Sequence[Row], console: Console) -> None:
    """Print one table per quantity."""
    for part in PARTS:
        mine = [row for row in rows if row.part == part.name]
        for quantity in dict.fromkeys(row.key.quantity for row in mine):
            console.print(quantity_table([row for row in mine if row.key.quantity == quantity], part))
            console.print()


def quantity_table(rows: Sequence[Row], part: ChainPart) -> Any:
    """Median over seeds by case and depth (width, batch size), above what theory expects."""
    columns = list(dict.fromkeys(part.column_of(row.key) for row in rows))
    cells: list[list[Any]] = []
    for name in dict.fromkeys(part.row_of(row.key) for row in rows):
        at = {part.column_of(row.key): row for row in rows if part.row_of(row.key) == name}
        judged = [row for row in at.values() if row.seeds_as_predicted is not None]
        right = sum(row.seeds_as_predicted or 0 for row in judged)
        count = f"{right} of {sum(len(row.measured) for row in judged)}" if judged else "-"
        medians = [format_number(float(np.median(at[column].measured))) for column in columns]
        cells.append([name, "measured", *medians, count])
        if judged:
            cells.append(["", "theory", *(_expected_text(at[column].expected) for column in columns), ""])
    is_by_unit = len(columns) > 1 and columns[0] == str(rows[0].key.at)
    unit = f", by {part.unit}" if is_by_unit else ""
    return render_table(
        ["case", "", *columns, "as predicted"], cells, title=f"{part.title}: {rows[0].key.quantity}{unit}"
    )


def _expected_text(expected: Expected | None) -> str:
    return "-" if expected is None else format_number(expected.value)


def sentence(rows: Sequence[Row]) -> str:
    """How much is as predicted, and how a chain of gain 1 widens."""
    judged = [row for row in rows if row.seeds_as_predicted is not None]
    right = sum(row.seeds_as_predicted or 0 for row in judged)
    text = (
        f"{right} of {sum(len(row.measured) for row in judged)} figures lie within 10 % of theory or inside the 95 % "
        "band of draws"
    )
    ranks = [row for row in rows if row.key.case == "relu" and row.key.quantity == RANK]
    if ranks:
        deepest = max(ranks, key=lambda row: row.key.at)
        share = format_number(float(np.median(deepest.measured)), digits=2)
        text += f"; behind {deepest.key.at} ReLU layers of gain 1 the Jacobian's effective rank is {share} of the width"
    return f"{text}."
