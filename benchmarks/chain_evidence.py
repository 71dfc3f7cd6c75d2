"""The evidence behind docs/chain.md: every experiment it reports, run or continued, one folder each.

    OMP_NUM_THREADS=1 python benchmarks/chain_evidence.py run   --out runs/chain-evidence --jobs 1
    OMP_NUM_THREADS=1 python benchmarks/chain_evidence.py write --out runs/chain-evidence

``run`` can be stopped and started again; ``write`` makes docs/chain.md and its picture from what there is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from evidence import read_arguments, run_all

from kilolayer.lab.chain_experiment import PARTS, ChainExperiment
from kilolayer.lab.chain_run import ChainRun

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


def main() -> int:
    """Run or write."""
    arguments = read_arguments(__doc__, "runs/chain-evidence")
    if arguments.action == "run":
        return run_all(experiments(), arguments)
    from chain_page import write_page

    write_page(dict(experiments()), arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
