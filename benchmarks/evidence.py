"""Running the experiments behind a page, or writing the page from what has been run."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kilolayer.lab.experiment import Experiment, finished_runs, run_experiment

Named = Iterable[tuple[str, Experiment[Any]]]
"""Experiments by folder name, in the order they are run in."""


def read_arguments(
    description: str | None, out: str, *, actions: tuple[str, ...] = ("run", "write"), data: str = ""
) -> argparse.Namespace:
    """The command line of every evidence script; ``data`` is the help of ``--data`` where there is one."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=actions)
    if data:
        parser.add_argument("--data", required=True, help=data)
    parser.add_argument("--out", type=Path, default=Path(out))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="", help="the experiment of this name, or all whose name contains this")
    return parser.parse_args()


def run_all(experiments: Named, arguments: argparse.Namespace) -> int:
    """Carry out what is missing; the exit status, 130 after Ctrl-C."""
    named = dict(experiments)
    only = arguments.only
    chosen = [only] if only in named else [name for name in named if only in name]
    if not chosen:
        print(f"no experiment is named {only!r}; there are {', '.join(named)}", file=sys.stderr)
        return 2
    for name in chosen:
        experiment, folder = named[name], arguments.out / name
        started, before = time.perf_counter(), len(finished_runs(experiment, folder))
        if not run_experiment(experiment, folder, jobs=arguments.jobs):
            return 130
        count = len(experiment.runs)
        print(f"{name}: {count} runs, {count - before} new, {time.perf_counter() - started:.0f} s", flush=True)
    return 0
