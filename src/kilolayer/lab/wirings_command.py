"""``kilolayer lab wirings``: run, judge, show."""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import fill

from rich.console import Console

from kilolayer.lab.experiment import HERE
from kilolayer.lab.progress import run_with_progress
from kilolayer.lab.wirings import WiringRun
from kilolayer.lab.wirings_experiment import WiringsExperiment
from kilolayer.lab.wirings_results import load_results, to_record, with_earlier_results


def run_command(data: str, runs: tuple[WiringRun, ...], out: Path, *, jobs: int, on: str = HERE, as_json: bool) -> bool:
    """Run what ``out`` lacks, print tables and verdicts (or one JSON object), write the report.

    Returns:
        whether every run finished; false after Ctrl-C.
    """
    experiment = WiringsExperiment(data, runs)
    finished = run_with_progress(experiment, out, jobs, on)
    results = load_results(experiment, out)
    if as_json:
        from kilolayer.report import to_json

        print(to_json({"format": 1, "runs": [to_record(result) for result in results]}))
    elif results:
        from kilolayer.lab.wirings_report import save_reports, sentence
        from kilolayer.lab.wirings_tables import print_results

        everything = with_earlier_results(results, out)
        try:
            reports = [f"Report: {path}" for path in save_reports(everything, out)]
        except ImportError as error:
            reports = [f"No report: {error}"]
        if len(everything) > len(results):
            reports.append(
                f"It shows all {len(everything)} finished runs of the folder; the tables show those asked for."
            )
        console = Console()
        print_results(results, console)
        print(fill(sentence(results), console.width - 1, break_on_hyphens=False))
        print("\n".join(reports))
    if not finished:
        print(f"Stopped with {len(results)} of {len(runs)} runs finished; the same command continues.", file=sys.stderr)
    return finished
