"""The tables and the verdicts of ``kilolayer lab wirings``."""

from __future__ import annotations

import math
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
    for table in step_0_tables([result for result in results if result.run.lr == results[0].run.lr]):
        console.print(table)
        console.print()
    console.print(training_table(results))
    console.print()
    for group in by_setting(results):
        console.print(verdict(group, console.width))
        console.print()


def by_setting(results: Iterable[RunResult]) -> list[Group]:
    """Results grouped by wiring and learning rate, in their order."""
    return [list(group) for _, group in groupby(results, key=lambda r: (r.run.wiring, r.run.lr))]


def step_0_tables(results: Sequence[RunResult]) -> tuple[Any, Any]:
    """Activation std, and gradient norm, at a few blocks, each above what theory predicts."""
    groups = by_setting(results)
    blocks = rows_at(results[0].run.num_blocks)
    header = ["wiring", *(f"block {index + 1}" for index in blocks)]
    std_rows, grad_rows = [], []
    for group in groups:
        std, (grad, *_) = group[0].predicted
        name = group[0].run.wiring
        std_rows += _measured_and_predicted(name, [result.activation_std for result in group], std, blocks)
        grad_rows += _measured_and_predicted(name, [result.grad_norm for result in group], grad, blocks)
    return (
        render_table(header, std_rows, title="Activation std at step 0"),
        render_table(
            header,
            grad_rows,
            title="Gradient norm of each block's first matrix at step 0",
            caption=(
                "predicted: a value, or median*factor where draws of the weights scatter: 95 % lie within that factor"
            ),
        ),
    )


def _measured_and_predicted(
    name: str, curves: Sequence[np.ndarray], band: Band, blocks: Sequence[int]
) -> list[list[str]]:
    return [[name, *_measured(curves, blocks)], ["  predicted", *_predicted(band, blocks)]]


def training_table(results: Sequence[RunResult]) -> Any:
    """How each run went; ranges over seeds. Steps that were not finite have a column where there are any."""
    groups = by_setting(results)
    columns: dict[str, list[str]] = {
        "wiring": [group[0].run.wiring for group in groups],
        "lr": [f"{group[0].run.lr:g}" for group in groups],
        "outcome": [outcomes(group) for group in groups],
        "loss": [_range([result.result["loss"] for result in group]) for group in groups],
        "accuracy": [_range([100 * r.result["accuracy"] for r in group], digits=3) + " %" for group in groups],
        "non-finite at": [_nonfinite_steps(group) for group in groups],
        "seconds": [_range([result.result["seconds"] for result in group]) for group in groups],
    }
    if not any(columns["non-finite at"]):
        del columns["non-finite at"]
    return render_table(list(columns), zip(*columns.values(), strict=True), title="Training", num_keys=2)


def _nonfinite_steps(group: Group) -> str:
    steps = [r.result["nonfinite_step"] for r in group if r.result["nonfinite_step"] is not None]
    return f"step {_range(steps)}" if steps else ""


def verdict(group: Group, width: int = 80) -> Text:
    """One verdict for the seeds of a setting: the first with a root, and how many seeds share its cause."""
    run = group[0].run
    heading = Text(f"{run.wiring}, lr {run.lr:g}: {outcomes(group)}", style="bold")
    roots = [result.diagnosis.root for result in group if result.diagnosis.root is not None]
    examined = f"{_count(run.num_blocks, 'block')} over {_count(run.num_steps, 'step')}"
    if not roots and any(result.result["outcome"] != "trains" for result in group):
        return Text.assemble(heading, f"\n  No cause found in {examined}: nothing measured stands out.")
    if not roots:
        return Text.assemble(heading, "\n  ", render_verdict(None, examined=examined, width=width))
    shared = sum(root.cause == roots[0].cause for root in roots)
    if len(group) > 1:
        heading.append(f"; {roots[0].cause} in {shared} of {len(group)} seeds")
    return Text.assemble(heading, "\n  ", render_verdict(roots[0], width=width))


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def outcomes(group: Group) -> str:
    """The outcome, or how often each was seen."""
    names = [result.result["outcome"] for result in group]
    if len(set(names)) == 1:
        return str(names[0])
    return ", ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(names))


def _measured(curves: Sequence[np.ndarray], blocks: Sequence[int]) -> list[str]:
    values = np.stack(curves)
    return [_range(values[:, index]) for index in blocks]


def _predicted(band: Band, blocks: Sequence[int]) -> list[str]:
    """The value; where draws scatter the median and the factor that the band spans around it."""
    texts = []
    for index in blocks:
        value, low, high = band.value[index], band.low[index], band.high[index]
        if band.scatters and 0 < low <= high < math.inf:
            texts.append(f"{format_number(value, digits=2)}*{format_number(math.sqrt(high / low), digits=2)}")
        else:
            texts.append(format_number(value))
    return texts


def _range(values: Iterable[float], *, digits: int = 2) -> str:
    found = list(values)
    return format_range(min(found), max(found), digits=digits) if len(found) > 1 else format_number(found[0])
