"""``kilolayer lab wirings``: run, judge, show."""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import fill

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from kilolayer.lab.experiment import Experiment, run_experiment
from kilolayer.lab.wirings import WiringRun
from kilolayer.lab.wirings_results import load_results, to_record


def run_command(data: str, runs: tuple[WiringRun, ...], out: Path, *, jobs: int, as_json: bool) -> bool:
    """Run what ``out`` lacks, print tables and verdicts (or one JSON object), write the report.

    Returns:
        whether every run finished; false after Ctrl-C.
    """
    experiment = Experiment(data, runs)
    finished = _run_with_progress(experiment, out, jobs)
    results = load_results(experiment, out)
    if as_json:
        from kilolayer.report import to_json

        print(to_json({"format": 1, "runs": [to_record(result) for result in results]}))
        return finished
    if results:
        from kilolayer.lab.wirings_report import save_reports, sentence
        from kilolayer.lab.wirings_tables import print_results

        try:
            reports = [f"Report: {path}" for path in save_reports(results, out)]
        except ImportError as error:
            reports = [f"No report: {error}"]
        print_results(results, Console())
        print(fill(sentence(results), 79))
        print("\n".join(reports))
    if not finished:
        print(f"Stopped with {len(results)} of {len(runs)} runs finished; the same command continues.", file=sys.stderr)
    return finished


def _run_with_progress(experiment: Experiment, out: Path, jobs: int) -> bool:
    num_steps = experiment.runs[0].num_steps
    total = len(experiment.runs)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("steps"))
    console = Console(stderr=True)
    bars = (*columns, TimeRemainingColumn())
    with Progress(*bars, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"0 of {total} runs", total=total * num_steps)

        def on_progress(steps: int, runs: int) -> None:
            progress.update(task, completed=steps, description=f"{runs} of {total} runs")

        return run_experiment(experiment, out, jobs=jobs, on_progress=on_progress)
