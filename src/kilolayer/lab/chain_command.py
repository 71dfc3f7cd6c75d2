"""``kilolayer lab chain``: measure, compare with theory, show."""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import fill

from rich.console import Console

from kilolayer.lab.chain_experiment import ChainExperiment, load_rows
from kilolayer.lab.chain_run import ChainRun
from kilolayer.lab.experiment import HERE, finished_runs
from kilolayer.lab.progress import run_with_progress

PICTURE = "chain.png"


def run_command(runs: tuple[ChainRun, ...], out: Path, *, jobs: int, on: str = HERE, as_json: bool) -> bool:
    """Run what ``out`` lacks, print tables and a sentence (or one JSON object), draw the picture.

    Returns:
        whether every run finished; false after Ctrl-C.
    """
    experiment = ChainExperiment(runs)
    finished = run_with_progress(experiment, out, jobs, on)
    rows = load_rows(experiment, out)
    if as_json:
        from kilolayer.report import to_json

        seeds = sorted({run.seed for run in finished_runs(experiment, out)})
        settings = {"blocks": runs[0].num_blocks, "width": runs[0].width, "seeds": seeds}
        print(to_json({"format": 1, **settings, "rows": [row.to_json() for row in rows]}))
    elif rows:
        _show(experiment, out)
    if not finished:
        count = len(finished_runs(experiment, out))
        print(f"Stopped with {count} of {len(runs)} runs finished; the same command continues.", file=sys.stderr)
    return finished


def _show(experiment: ChainExperiment, out: Path) -> None:
    from kilolayer.lab.chain_picture import draw_png
    from kilolayer.lab.chain_tables import print_rows, sentence
    from kilolayer.report.files import replace_file

    rows = load_rows(experiment, out)
    print_rows(rows, Console())
    print(fill(sentence(rows), 79))
    try:
        print(f"Picture: {replace_file(out / PICTURE, draw_png(rows))}")
    except ImportError as error:
        print(f"No picture: {error}")
