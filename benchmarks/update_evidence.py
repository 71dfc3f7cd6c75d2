"""The evidence behind docs/update.md: every experiment it reports, run or continued, one folder each.

    OMP_NUM_THREADS=1 python benchmarks/update_evidence.py run   --out runs/update-evidence --jobs 1
    OMP_NUM_THREADS=1 python benchmarks/update_evidence.py write --out runs/update-evidence

``run`` can be stopped and started again; ``write`` makes docs/update.md and its picture from what there is.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator

from evidence import read_arguments, run_all

from kilolayer.lab.update_experiment import UpdateExperiment
from kilolayer.lab.update_run import UpdateRun

SCHEMES = ("post-ln", "post-ln:beta-only", "deepnorm", "pre-ln")
POWERS = ("0", "0.125", "0.25", "0.375", "0.5")
SMALL_LRS = {"sgd": 1e-3, "adamw": 1e-5}
"""Steps small enough for updates to be proportional to them."""
USUAL_LRS = {"sgd": 1e-2, "adamw": 1e-3}


def experiments() -> Iterator[tuple[str, UpdateExperiment]]:
    """Every experiment by folder name, the longest last."""
    for network in ("decoder", "encoder", "mlp"):
        yield (
            f"steps-{network}",
            UpdateExperiment(
                tuple(
                    UpdateRun(scheme=scheme, num_branches=depth, network=network, optimizer=name, lr=USUAL_LRS[name])
                    for depth in (10, 32, 100)
                    for scheme, name in itertools.product(SCHEMES, USUAL_LRS)
                )
            ),
        )
    yield (
        "exponent",
        UpdateExperiment(
            tuple(
                UpdateRun(scheme=f"deepnorm:power-{power}", num_branches=depth, lr=SMALL_LRS["sgd"], num_steps=1)
                for depth, power in itertools.product((10, 32, 100, 316), POWERS)
            )
        ),
    )
    yield (
        "law",
        UpdateExperiment(
            tuple(
                UpdateRun(scheme=scheme, num_branches=depth, optimizer=name, lr=SMALL_LRS[name], seed=seed, num_steps=2)
                for depth, seeds in ((10, 3), (32, 3), (100, 3), (316, 1), (1000, 1))
                for name, scheme, seed in itertools.product(SMALL_LRS, SCHEMES, range(seeds))
            )
        ),
    )


def main() -> int:
    """Run or write."""
    arguments = read_arguments(__doc__, "runs/update-evidence")
    if arguments.action == "run":
        return run_all(experiments(), arguments)
    from update_page import write_page

    write_page(dict(experiments()), arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
