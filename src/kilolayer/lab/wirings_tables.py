"""The two tables and the verdicts of ``kilolayer lab wirings``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kilolayer.lab.wirings_results import Band, RunResult, rows_at
from kilolayer.report import format_number, format_range, render_verdict

Group = list[RunResult]
"""The seeds of one wiring at one learning rate."""


def print_results(results: Sequence[RunResult], console: Console) -> None:
    """Print step 0, training and one verdict per run that has a root."""
    first_lr = results[0].run.lr
    at_step_0 = [result for result in results if result.run.lr == first_lr and result.init is not None]
    if at_step_0:
        console.print(step_0_table(at_step_0))
        console.print()
    console.print(training_table(results))
    console.print()
    for group in by_setting(results):
        console.print(verdict(group))


def by_setting(results: Iterable[RunResult]) -> list[Group]:
    """Results grouped by wiring and learning rate, in their order."""
    return [list(group) for _, group in groupby(results, key=lambda r: (r.run.wiring, r.run.lr))]


def step_0_table(results: Sequence[RunResult]) -> Table:
    """Activation std and weight-gradient norm at a few blocks, each above what theory predicts."""
    run = results[0].run
    blocks = rows_at(run.num_blocks)
    table = Table(title="Step 0: measured, and predicted below it", title_justify="left", box=None, pad_edge=False)
    table.add_column("wiring", no_wrap=True)
    table.add_column("")
    for index in blocks:
        table.add_column(f"block {index + 1}", justify="right", no_wrap=True)
    for group in by_setting(results):
        stds = np.stack([result.activation_std() for result in group])
        grads = np.stack([result.grad_norm() for result in group])
        predicted = group[0].predicted
        table.add_row(group[0].run.wiring, "std", *_measured(stds, blocks))
        table.add_row("", "predicted", *_predicted(predicted.std, blocks), style="dim")
        table.add_row("", "gradient", *_measured(grads, blocks))
        table.add_row("", "predicted", *_predicted(predicted.grad_norm, blocks), style="dim")
    return table


def training_table(results: Sequence[RunResult]) -> Table:
    """How each run went; ranges over seeds."""
    table = Table(title="Training", title_justify="left", box=None, pad_edge=False)
    for name in ("wiring", "lr"):
        table.add_column(name, no_wrap=True)
    for name in ("loss", "accuracy", "non-finite", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("outcome")
    for group in by_setting(results):
        steps = [r.result["nonfinite_step"] for r in group if r.result["nonfinite_step"] is not None]
        table.add_row(
            group[0].run.wiring,
            f"{group[0].run.lr:g}",
            _range([r.result["loss"] for r in group]),
            _range([100 * r.result["accuracy"] for r in group], digits=3) + " %",
            f"step {_range(steps)}" if steps else "",
            _range([r.result["seconds"] for r in group]),
            _outcomes(group),
        )
    return table


def verdict(group: Group) -> Text:
    """One verdict for the seeds of a setting: the first seed's, and how many seeds share its cause."""
    run = group[0].run
    title = f"{run.wiring}, lr {run.lr:g}"
    found = [result for result in group if result.diagnosis.root is not None]
    if not found:
        outcome = _outcomes(group)
        return Text(f"{title}: {outcome}; nothing stands out.\n", style="green" if outcome == "trains" else "")
    root = found[0].diagnosis.root
    shared = sum(1 for r in found if r.diagnosis.root is not None and root and r.diagnosis.root.cause == root.cause)
    heading = f"{title}: {_outcomes(group)}" + (f" ({shared} of {len(group)} seeds)" if len(group) > 1 else "")
    return Text.assemble(Text(heading, style="bold"), "\n", render_verdict(root), "\n")


def _measured(values: np.ndarray, blocks: list[int]) -> list[str]:
    return [_range(values[:, index]) for index in blocks]


def _predicted(band: Band | None, blocks: list[int]) -> list[str]:
    if band is None:
        return ["-"] * len(blocks)
    if band.low is None or band.high is None:
        return [format_number(band.value[index]) for index in blocks]
    return [format_range(band.low[index], band.high[index]) for index in blocks]


def _range(values: Iterable[float], *, digits: int = 2) -> str:
    found = [value for value in values if value is not None]
    if not found:
        return "-"
    return format_range(min(found), max(found), digits=digits) if len(found) > 1 else format_number(found[0])


def _outcomes(group: Group) -> str:
    names = [result.result["outcome"] for result in group]
    if len(set(names)) == 1:
        return str(names[0])
    return ", ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(names))
