"""Everything an HTML report says, put together before any HTML is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kilolayer.recording import Recording
from kilolayer.report.facts import shared_and_differing, structure_sentence, summary_labels
from kilolayer.report.grid import Grid, GridReader, first_nonfinite_step, run_series
from kilolayer.report.group import Group, Picture
from kilolayer.report.loss import LossAxis, loss_panel, spike_size
from kilolayer.report.numbers import number_table
from kilolayer.report.panel import Budget, Names, depth_panel
from kilolayer.report.pictures import structure_group, trials_group
from kilolayer.report.quantity import Quantity, quantities_of
from kilolayer.report.scale import CURVE_COLORS, NONFINITE_COLOR, VIRIDIS, shared_scale
from kilolayer.report.text import format_number, inert
from kilolayer.report.view import RunView

MAX_DRAWN_RUNS = 24
"""Five pictures each: more nobody looks at, and the file would grow past what opens at once. Tables and verdicts show
every run."""


COLORS = {"viridis": VIRIDIS, "nonfinite": NONFINITE_COLOR, "curves": CURVE_COLORS}


@dataclass
class Page:
    """What the template is handed, and the data the drawings are made from."""

    runs: tuple[RunView, ...]
    names: tuple[str, ...]
    summary_labels: list[str]
    structures: list[str]
    not_recorded: list[list[str]]
    groups: list[Group]
    losses: Group
    structure: Group
    trials: Group
    shared_facts: dict[str, str]
    differing_facts: dict[str, list[str]]
    data: dict[str, Any]
    num_drawn: int
    last_block: int


def build_page(runs: Sequence[RunView]) -> Page:
    """Read every run's recording and lay out the page."""
    runs = tuple(runs)
    drawn_runs = runs[:MAX_DRAWN_RUNS]
    quantities = quantities_of(drawn_runs)
    readers = [GridReader(run.recording) for run in drawn_runs]
    grids = {quantity: [reader.read(quantity) for reader in readers] for quantity in quantities}
    names, panels = Names(), list[dict[str, Any]]()
    budget = Budget.share(len(drawn_runs) * len(quantities))
    groups = [
        _group(quantity, drawn_runs, grids[quantity], names=names, panels=panels, budget=budget)
        for quantity in quantities
    ]
    per_run = [[grids[quantity][index] for quantity in quantities] for index in range(len(drawn_runs))]
    losses = _losses(drawn_runs, per_run, panels)
    shared, differing = shared_and_differing(runs)
    return Page(
        runs=runs,
        names=tuple(inert(run.name) for run in runs),
        summary_labels=summary_labels(runs),
        structures=[structure_sentence(run.recording) for run in runs],
        not_recorded=[_not_recorded(run.recording, quantities) for run in runs],
        groups=groups,
        losses=losses,
        structure=structure_group(drawn_runs, names=names, panels=panels),
        trials=trials_group(drawn_runs, panels),
        shared_facts=shared,
        differing_facts=differing,
        data={"names": names.texts, "panels": panels, "colors": COLORS},
        num_drawn=len(drawn_runs),
        last_block=max((max(grid.block_numbers) for kept in per_run for grid in kept if grid is not None), default=0),
    )


def _group(
    quantity: Quantity, runs: Sequence[RunView], grids: Sequence[Grid | None], *,
    names: Names, panels: list[dict[str, Any]], budget: Budget,
) -> Group:  # fmt: skip
    drawn = [grid for grid in grids if grid is not None]
    scale = shared_scale(drawn) if drawn else None
    pictures = []
    for run, grid in zip(runs, grids, strict=True):
        if grid is None or scale is None:
            pictures.append(Picture(inert(run.name), f"{quantity.title}: not recorded in this run.", None))
            continue
        prediction = run.prediction(quantity.role, quantity.stat)
        panels.append(depth_panel(grid, prediction, scale=scale, names=names, budget=budget))
        numbers = number_table(grid, prediction)
        pictures.append(Picture(inert(run.name), grid_words(grid), len(panels) - 1, numbers))
    return Group(quantity.key, quantity.title, quantity.meaning, tuple(pictures), scale)


def grid_words(grid: Grid) -> str:
    """What a heat map shows, in words."""
    values = grid.values[np.isfinite(grid.values)]
    reach = f"{format_number(values.min())} to {format_number(values.max())}" if len(values) else "no finite value"
    bad = grid.first_nonfinite_step
    tail = "" if bad is None else f"; non-finite from step {bad}"
    steps = "1 step" if len(grid.steps) == 1 else f"{len(grid.steps)} steps"
    sites = "1 site" if len(grid.sites) == 1 else f"{len(grid.sites)} sites"
    return f"{grid.quantity.title} over {steps} and {sites}: {reach}{tail}."


def _losses(runs: Sequence[RunView], grids: Sequence[Sequence[Grid | None]], panels: list[dict[str, Any]]) -> Group:
    axis, num_others = LossAxis.of_runs(runs), len(panels)
    limit = max(20_000 // max(len(runs), 1), 100)
    pictures = []
    for run, kept in zip(runs, grids, strict=True):
        bad = first_nonfinite_step(run.recording, kept)
        panel = loss_panel(run, axis, nonfinite_step=bad, limit=limit)
        if panel is None:
            pictures.append(Picture(inert(run.name), "Loss: not recorded in this run.", None))
            continue
        panels.append(panel)
        pictures.append(Picture(inert(run.name), loss_words(run, bad), len(panels) - 1))
    meaning = "Training loss of each step" + (", on the same axis for all runs." if len(runs) > 1 else ".")
    if any(panel["above"]["x"] for panel in panels[num_others:]):
        meaning += " Triangles mark losses above the axis."
    if any(panel["spikes"]["x"] for panel in panels[num_others:]):
        meaning += " Diamonds mark spikes; point at one to read what rose first."
    return Group("loss", "Loss", meaning, tuple(pictures))


def loss_words(run: RunView, nonfinite_step: int | None) -> str:
    """What a loss curve shows, in words."""
    steps, losses = run_series(run.recording, "loss")
    finite = np.flatnonzero(np.isfinite(losses))
    ends = dict.fromkeys(finite[[0, -1]].tolist()) if len(finite) else ()
    said = [f"{format_number(losses[index])} at step {steps[index]}" for index in ends]
    if run.spikes:
        largest = max(run.spikes, key=spike_size)
        count = "1 spike" if len(run.spikes) == 1 else f"{len(run.spikes)} spikes, the largest"
        said.append(f"{count} at {inert(str(largest), limit=300)}")
    if nonfinite_step is not None:
        said.append(f"first non-finite value at step {nonfinite_step}")
    return f"Loss {', '.join(said)}."


def _not_recorded(recording: Recording, quantities: Sequence[Quantity]) -> list[str]:
    missing = [one.title.lower() for one in quantities if not recording.has(one.role, one.stat)]
    return missing if recording.has("run", "loss") else [*missing, "loss"]
