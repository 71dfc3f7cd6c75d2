"""The evidence behind docs/chain.md: every experiment it reports, run or continued, one folder each.

    OMP_NUM_THREADS=1 python benchmarks/chain_evidence.py run   --out runs/chain-evidence --jobs 1
    OMP_NUM_THREADS=1 python benchmarks/chain_evidence.py write --out runs/chain-evidence

``run`` can be stopped and started again; ``write`` makes docs/chain.md and its picture from what there is.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from kilolayer.lab.chain_experiment import PARTS, ChainExperiment
from kilolayer.lab.chain_run import ChainRun
from kilolayer.lab.experiment import finished_runs, run_experiment

DEEPER = ("growth", "products")


def experiments() -> Iterator[tuple[str, ChainExperiment]]:
    """Every experiment by folder name, the shortest first."""
    names = [part.name for part in PARTS]
    yield "64", ChainExperiment(tuple(ChainRun(part=name, seed=seed) for seed in range(3) for name in names))
    yield (
        "256",
        ChainExperiment(
            tuple(ChainRun(part=name, num_blocks=256, width=128, seed=seed) for seed in range(2) for name in DEEPER)
        ),
    )


def run(out: Path, jobs: int, only: str) -> bool:
    """Carry out what is missing."""
    for name, experiment in experiments():
        if only not in name:
            continue
        started, before = time.perf_counter(), len(finished_runs(experiment, out / name))
        if not run_experiment(experiment, out / name, jobs=jobs):
            return False
        new = len(experiment.runs) - before
        print(f"{name}: {len(experiment.runs)} runs, {new} new, {time.perf_counter() - started:.0f} s", flush=True)
    return True


def main() -> int:
    """Run or write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("run", "write"))
    parser.add_argument("--out", type=Path, default=Path("runs/chain-evidence"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="", help="only experiments whose name contains this")
    arguments = parser.parse_args()
    if arguments.action == "run":
        return 0 if run(arguments.out, arguments.jobs, arguments.only) else 130
    from chain_page import write_page

    write_page(dict(experiments()), arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
