"""``kilolayer lab rules``: run, compare, show."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from kilolayer.lab.depth_run import DepthRun
from kilolayer.lab.experiment import HERE
from kilolayer.lab.progress import run_with_progress
from kilolayer.lab.rules_experiment import RulesExperiment
from kilolayer.lab.rules_results import Standing, load_results, rank, sentence, to_json_record
from kilolayer.report import to_json

PICTURE = "rules.png"


def run_command(data: str, runs: tuple[DepthRun, ...], out: Path, *, jobs: int, on: str = HERE, as_json: bool) -> bool:
    """Run what ``out`` lacks, print tables and verdict (or one JSON object), draw the picture.

    Returns:
        whether every run finished; false after Ctrl-C.
    """
    experiment = RulesExperiment(data, runs)
    finished = run_with_progress(experiment, out, jobs, on)
    results = load_results(experiment, out)
    standings = rank(results) if results else []
    if as_json:
        print(to_json({"format": 1, "runs": [to_json_record(one) for one in results]} | _said(standings)))
    elif standings:
        from kilolayer.lab.rules_tables import print_results

        print_results(standings, Console())
        print(_save_picture(standings, out / PICTURE))
    if not finished:
        print(f"Stopped with {len(results)} of {len(runs)} runs finished; the same command continues.", file=sys.stderr)
    return finished


def _said(standings: list[Standing]) -> dict[str, object]:
    """The ranking and the verdict, for JSON."""
    ranking = [
        {
            "place": one.place,
            "scheme": one.scheme,
            "held_out_loss": one.mean,
            "held_out_loss_by_seed": one.held_out,
            "behind_first_by_seed": list(one.behind),
        }
        for one in standings
    ]
    return {"ranking": ranking, "sentence": sentence(standings) if standings else None}


def _save_picture(standings: list[Standing], path: Path) -> str:
    from kilolayer.lab.depth_pictures import save_picture
    from kilolayer.lab.rules_pictures import draw_rules

    return save_picture(path, lambda: draw_rules(standings, title=sentence(standings)))
