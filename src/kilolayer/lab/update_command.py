"""``kilolayer lab update``: run, compare with theory, show."""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import fill

from rich.console import Console

from kilolayer.lab.experiment import HERE, finished_runs
from kilolayer.lab.progress import run_with_progress
from kilolayer.lab.update_experiment import UpdateExperiment, load_curves
from kilolayer.lab.update_run import UpdateRun, to_record

PICTURE = "update.png"


def run_command(runs: tuple[UpdateRun, ...], out: Path, *, jobs: int, on: str = HERE, as_json: bool) -> bool:
    """Run what ``out`` lacks, print tables and a sentence (or one JSON object), draw the picture.

    Returns:
        whether every run finished; false after Ctrl-C.
    """
    experiment = UpdateExperiment(runs)
    finished = run_with_progress(experiment, out, jobs, on)
    found = finished_runs(experiment, out)
    if as_json:
        from kilolayer.report import to_json

        print(to_json({"format": 1, "runs": [to_record(run, found[run]) for run in runs if run in found]}))
    elif found:
        _show(experiment, out)
    if not finished:
        print(f"Stopped with {len(found)} of {len(runs)} runs finished; the same command continues.", file=sys.stderr)
    return finished


def _show(experiment: UpdateExperiment, out: Path) -> None:
    from kilolayer.lab.update_picture import draw_png
    from kilolayer.lab.update_tables import print_curves, sentence
    from kilolayer.report.files import replace_file

    curves = load_curves(experiment, out)
    print_curves(curves, Console(), last_step=experiment.runs[0].num_steps)
    print(fill(sentence(curves), 79))
    try:
        print(f"Picture: {replace_file(out / PICTURE, draw_png(curves))}")
    except ImportError as error:
        print(f"No picture: {error}")
