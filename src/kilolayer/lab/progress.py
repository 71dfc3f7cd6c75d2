"""The progress bar of every lab: steps, runs, time left; on standard error, and only on a terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from kilolayer.lab.experiment import HERE, Experiment, run_experiment

SPEED_OVER_S = 300.0
"""A step of a thousand layers takes seconds, so the speed behind the time left is taken over minutes."""


def run_with_progress(experiment: Experiment[Any], out: Path, jobs: int, on: str = HERE) -> bool:
    """:func:`run_experiment` under a progress bar; false after Ctrl-C."""
    total = len(experiment.runs)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("steps"))
    console = Console(stderr=True)
    bars = (*columns, TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    with Progress(
        *bars, console=console, transient=True, disable=not console.is_terminal, speed_estimate_period=SPEED_OVER_S
    ) as progress:
        task = progress.add_task(f"0 of {total} runs", total=sum(run.num_steps for run in experiment.runs))

        def on_progress(steps: int, runs: int) -> None:
            progress.update(task, completed=steps, description=f"{runs} of {total} runs")

        return run_experiment(experiment, out, jobs=jobs, on=on, on_progress=on_progress)
