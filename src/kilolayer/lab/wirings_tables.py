"""The two tables and the verdicts of ``kilolayer lab wirings``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from kilolayer.lab.wirings_results import Band, RunResult, rows_at
from kilolayer.report import format_number, format_range, render_table, render_verdict

Group = list[RunResult]
"""The seeds of one wiring at one learning rate."""


def print_results(results: Sequence[RunResult], console: Console) -> None:
    """Print step 0, training and one verdict for each wiring and learning rate."""
    console.print(step_0_table([result for result in results if result.run.lr == results[0].run.lr]))
    console.print()
    console.print(training_table(results))
    console.print()
    for group in by_setting(results):
        console.print(verdict(group, console.width))
        console.print()


def by_setting(results: Iterable[RunResult]) -> list[Group]:
    """Results grouped by wiring and learning rate, in their order."""
    return [list(group) for _, group in groupby(results, key=lambda r: (r.run.wiring, r.run.lr))]


def step_0_table(results: Sequence[RunResult]) -> Any:
    """Activation std and weight-gradient norm at a few blocks, each above what theory predicts."""
    blocks = rows_at(results[0].run.num_blocks)
    rows: list[list[str]] = []
    for group in by_setting(results):
        std, grad = group[0].predicted
        rows += [
            [group[0].run.wiring, *_measured([result.activation_std for result in group], blocks)],
            ["  predicted", *_predicted(std, blocks)],
            ["  gradient", *_measured([result.grad_norm for result in group], blocks)],
            ["  predicted", *_predicted(grad, blocks)],
        ]
    header = ["activation std", *(f"block {index + 1}" for index in blocks)]
    caption = "predicted: a value, or median*factor where draws of the weights scatter: 95 % within that factor"
    return render_table(header, rows, title="Step 0", caption=caption)


def training_table(results: Sequence[RunResult]) -> Any:
    """How each run went; ranges over seeds."""
    rows = []
    for group in by_setting(results):
        steps = [r.result["nonfinite_step"] for r in group if r.result["nonfinite_step"] is not None]
        rows.append(
            [
                group[0].run.wiring,
                f"{group[0].run.lr:g}",
                _range([r.result["loss"] for r in group]),
                _range([100 * r.result["accuracy"] for r in group], digits=3) + " %",
                _range(steps) if steps else "",
                _range([r.result["seconds"] for r in group]),
                outcomes(group),
            ]
        )
    header = ["wiring", "lr", "loss", "accuracy", "NaN at", "seconds", "outcome"]
    return render_table(header, rows, title="Training")


def verdict(group: Group, width: int = 80) -> Text:
    """One verdict for the seeds of a setting: the first with a root, and how many seeds share its cause."""
    run = group[0].run
    heading = Text(f"{run.wiring}, lr {run.lr:g}: {outcomes(group)}", style="bold")
    roots = [result.diagnosis.root for result in group if result.diagnosis.root is not None]
    examined = f"{run.num_blocks} blocks over {run.num_steps} steps"
    if not roots and any(result.result["outcome"] != "trains" for result in group):
        return Text.assemble(heading, f"\n  No cause found in {examined}: nothing measured stands out.")
    if not roots:
        return Text.assemble(heading, "\n  ", render_verdict(None, examined=examined, width=width))
    shared = sum(root.cause == roots[0].cause for root in roots)
    if len(group) > 1:
        heading.append(f"; {roots[0].cause} in {shared} of {len(group)} seeds")
    return Text.assemble(heading, "\n  ", render_verdict(roots[0], width=width))


def outcomes(group: Group) -> str:
    """The outcome, or how often each was seen."""
    names = [result.result["outcome"] for result in group]
    if len(set(names)) == 1:
        return str(names[0])
    return ", ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(names))


def _measured(curves: Sequence[np.ndarray], blocks: list[int]) -> list[str]:
    values = np.stack(curves)
    return [_range(values[:, index]) for index in blocks]


def _predicted(band: Band, blocks: list[int]) -> list[str]:
    if not band.scatters:
        return [format_number(band.value[index]) for index in blocks]
    factors = np.exp(0.5 * (np.log(band.high) - np.log(band.low)))
    return [f"{format_number(band.value[i], digits=2)}*{format_number(factors[i], digits=2)}" for i in blocks]


def _range(values: Iterable[float], *, digits: int = 2) -> str:
    found = list(values)
    return format_range(min(found), max(found), digits=digits) if len(found) > 1 else format_number(found[0])
