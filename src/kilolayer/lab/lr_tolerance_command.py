"""``kilolayer lab lr-tolerance``: search, compare, show."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from kilolayer.lab.experiment import HERE
from kilolayer.lab.lr_tolerance import Search
from kilolayer.lab.lr_tolerance_experiment import ToleranceExperiment
from kilolayer.lab.lr_tolerance_results import group, load_results, sentence, to_json_runs, to_json_search
from kilolayer.lab.progress import run_with_progress
from kilolayer.report import to_json

PICTURE = "lr-tolerance.png"


def run_command(
    data: str, searches: tuple[Search, ...], out: Path, *, jobs: int, on: str = HERE, as_json: bool
) -> bool:
    """Search what ``out`` lacks, print tables and verdict (or one JSON object), draw the picture.

    Returns:
        whether every search finished; false after Ctrl-C.
    """
    experiment = ToleranceExperiment(data, searches)
    finished = run_with_progress(experiment, out, jobs, on)
    results = load_results(experiment, out)
    if as_json:
        said = {
            "runs": [run for result in results for run in to_json_runs(result)],
            "searches": [to_json_search(result) for result in results],
            "sentence": sentence(group(results)) if results else None,
        }
        print(to_json({"format": 1} | said))
    elif results:
        from kilolayer.lab.depth_pictures import save_picture
        from kilolayer.lab.lr_tolerance_pictures import draw_tolerance
        from kilolayer.lab.lr_tolerance_tables import print_results

        print_results(results, Console())
        print(save_picture(out / PICTURE, lambda: draw_tolerance(results)))
    if not finished:
        done = f"{len(results)} of {len(searches)} searches"
        print(f"Stopped with {done} finished; the same command continues.", file=sys.stderr)
    return finished
