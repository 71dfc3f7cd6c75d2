"""The evidence behind docs/rules.md: every experiment it reports, run or continued, one folder each.

    python benchmarks/rules_evidence.py run   --out runs/rules-evidence --jobs 2
    python benchmarks/rules_evidence.py write --out runs/rules-evidence

``run`` can be stopped and started again; ``write`` makes docs/rules.md and its picture from what has been run.
One run at 48 layers and width 64 costs 45 s of a core, Muon's 65 s.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator

from evidence import read_arguments, run_all

from kilolayer.lab.characters import STANDARD_LIBRARY
from kilolayer.lab.depth_run import DepthRun
from kilolayer.lab.rules_experiment import DEFAULT_SCHEMES, RulesExperiment

LAYERS = 48
FEW = ("post-ln", "pre-ln", "deepnorm:deepnet", "deepnorm:deeploop", "deepnorm:three-l")
SGD_LRS = (0.03, 0.3)
"""Momentum SGD has no rate of its own that suits every scheme; these two are a decade apart around 0.1."""


def experiment(schemes: tuple[str, ...], seeds: int, **options: object) -> RulesExperiment:
    """Seed by seed, so that what is stopped early covers every scheme."""
    runs = itertools.product(range(seeds), schemes)
    return RulesExperiment(
        STANDARD_LIBRARY,
        tuple(DepthRun(scheme, 0, LAYERS, seed=seed, **options) for seed, scheme in runs),  # type: ignore[arg-type]
    )


def experiments() -> Iterator[tuple[str, RulesExperiment]]:
    """Every experiment by folder name, the most important first."""
    yield "adamw", experiment(DEFAULT_SCHEMES, 3)
    for lr in SGD_LRS:
        yield f"sgd-{lr:g}", experiment(FEW, 1, optimizer="sgd", lr=lr)
    yield "muon", experiment(FEW, 1, optimizer="muon")
    yield "kaiming", experiment(FEW, 1, init="kaiming")


def main() -> int:
    """Run or write."""
    arguments = read_arguments(__doc__, "runs/rules-evidence")
    if arguments.action == "run":
        return run_all(experiments(), arguments)
    from rules_page import write_page

    write_page(arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
