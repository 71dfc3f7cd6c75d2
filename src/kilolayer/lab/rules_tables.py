"""The tables of ``kilolayer lab rules``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from kilolayer.lab.rules_results import Standing, scales_of, sentence, spread
from kilolayer.lab.training import LAST_STEPS
from kilolayer.report import format_number, format_range, render_table


def print_results(standings: Sequence[Standing], console: Console) -> None:
    """Print losses, gradients and the verdict."""
    console.print(loss_table(standings))
    console.print()
    for at_start in (True, False):
        console.print(gradient_table(standings, at_start=at_start))
        console.print()
    console.print(Text(sentence(standings)))


def loss_table(standings: Sequence[Standing]) -> Any:
    """Who ends where, and with which coefficients; ranges over seeds."""
    header = ["scheme", "place", "held-out loss", "behind the first", "train loss", "skip scale", "init gain"]
    rows = [loss_row(one) for one in standings]
    floor = standings[0].results[0].numbers["frequency_loss"]
    caption = (
        f"Nats per character, ranges over seeds. A model that ignores what came before reaches {floor:.3f} at best; "
        "train loss is the mean of the last steps."
    )
    return render_table(header, rows, title="Loss", caption=caption)


def loss_row(standing: Standing) -> list[str]:
    """One scheme's cells of the table of losses."""
    skip_scale, init_gain = scales_of(standing.results[0].run)
    trained = [one.numbers["train_loss"] for one in standing.results]
    behind = range_of(standing.behind, digits=2) if standing.place > 1 else "-"
    return [
        standing.scheme,
        str(standing.place),
        range_of(standing.held_out),
        behind,
        range_of(trained),
        format_number(skip_scale),
        format_number(init_gain),
    ]


def gradient_table(standings: Sequence[Standing], *, at_start: bool) -> Any:
    """Gradient norms of the bottom, middle and top layer, and how far apart those of all layers lie."""
    header = ["scheme", "bottom layer", "middle", "top", "largest/smallest"]
    rows = [gradient_row(one, at_start=at_start) for one in standings]
    when = "at step 0" if at_start else f"mean of the last {LAST_STEPS} steps"
    return render_table(header, rows, title=f"Gradient by depth, {when}")


def gradient_row(standing: Standing, *, at_start: bool) -> list[str]:
    """One scheme's cells of a table of gradients."""
    curves = [one.grads_at_start if at_start else one.grads for one in standing.results]
    layers = (0, len(curves[0]) // 2, -1)
    cells = [range_of((curve[layer] for curve in curves), digits=2) for layer in layers]
    return [standing.scheme, *cells, range_of(map(spread, curves), digits=2)]


def range_of(values: Iterable[float], *, digits: int = 3) -> str:
    """Smallest to largest; NaN counts as the largest."""
    found = np.array([float(value) for value in values])
    if not len(found):
        return "-"
    low, high = float(np.nanmin(found)) if not np.isnan(found).all() else math.nan, float(found.max())
    return format_range(low, high, digits=digits)
