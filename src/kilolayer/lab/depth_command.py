"""``kilolayer lab depth``: run the grid, compare, show."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.table import Table

from kilolayer.lab.depth_cells import DepthExperiment, to_record
from kilolayer.lab.depth_pictures import Panel, draw_panels, save_picture, scale_height_by_log, style_of
from kilolayer.lab.depth_results import Standing, save_table, sentence, stand
from kilolayer.lab.experiment import HERE, finished_runs
from kilolayer.lab.progress import run_with_progress
from kilolayer.report import to_json

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PICTURE = "depth.png"


def run_command(experiment: DepthExperiment, out: Path, *, jobs: int, on: str = HERE, as_json: bool) -> bool:
    """Run what ``out`` lacks, print tables (or one JSON object), write the Parquet table, draw the picture.

    Returns:
        whether every cell finished; false after Ctrl-C.
    """
    finished = run_with_progress(experiment, out, jobs, on)
    records = [to_record(cell, result) for cell, result in finished_runs(experiment, out).items()]
    standings = stand(records)
    if as_json:
        print(to_json({"format": 1, "runs": records, "sentence": sentence(standings) if standings else None}))
    elif standings:
        print_tables(standings, Console())
        print(save_picture(out / PICTURE, lambda: draw_depths(standings)))
    if records:
        path = save_table(records, out)
        print(f"Table: {path}", file=sys.stderr if as_json else sys.stdout)
    if not finished:
        done = f"{len(records)} of {len(experiment.runs)} cells"
        print(f"Stopped with {done} finished; the same command continues.", file=sys.stderr)
    return finished


def print_tables(standings: list[Standing], console: Console) -> None:
    """Held-out losses by scheme and rate, a table for each depth, and the sentence."""
    for layers in sorted({one.layers for one in standings}):
        there = [one for one in standings if one.layers == layers]
        lrs = sorted({lr for one in there for lr in one.losses})
        table = Table(title=f"{layers} layers: held-out loss in nats per token", title_justify="left", box=None)
        table.add_column("scheme", no_wrap=True)
        for lr in lrs:
            table.add_column(f"lr {lr:g}", justify="right", no_wrap=True)
        for one in there:
            table.add_row(one.scheme, *(one.describe(lr) for lr in lrs))
        console.print(table)
    console.print(sentence(standings), soft_wrap=True, highlight=False)


def draw_depths(standings: list[Standing]) -> bytes:
    """Best loss against depth, and the largest rate at which every seed trains, as PNG."""
    names = list(dict.fromkeys(one.scheme for one in standings))

    def panel(values: list[list[float]], label: str, *, is_log: bool) -> Panel:
        def draw(axes: Axes) -> None:
            for number, name in enumerate(names):
                layers = [one.layers for one in standings if one.scheme == name]
                # Rates are those of the grid, so that lines coincide: the first are drawn the widest.
                width = 1.5 * (len(names) - number) if is_log else 1.5
                axes.plot(
                    layers,
                    values[number],
                    label=name,
                    marker="o",
                    linewidth=width,
                    markersize=2 * width,
                    **style_of(number),
                )
            axes.set(xscale="log", xlabel="layers", ylabel=label)
            if is_log:
                scale_height_by_log(axes)

        return draw

    best = [[one.best_loss for one in standings if one.scheme == name] for name in names]
    largest = [[_largest_lr(one) for one in standings if one.scheme == name] for name in names]
    panels = [[panel(best, "best held-out loss, nats", is_log=False), panel(largest, "largest rate", is_log=True)]]
    return draw_panels(panels, title=sentence(standings))


def _largest_lr(one: Standing) -> float:
    """The largest rate at which every seed trains; NaN where none does."""
    return max((lr for lr, those in one.outcomes.items() if set(those) == {"trains"}), default=float(np.nan))
