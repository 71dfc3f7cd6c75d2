"""The evidence behind docs/lr-tolerance.md: every search it reports, made or continued, one folder per experiment.

    python benchmarks/lr_tolerance_evidence.py run   --out runs/lr-tolerance-evidence --jobs 2
    python benchmarks/lr_tolerance_evidence.py write --out runs/lr-tolerance-evidence

``run`` can be stopped and started again; ``write`` makes docs/lr-tolerance.md and its picture from what has been run.
One try of 60 steps at width 32 costs 2 s of a core at 16 layers, 8 s at 64 and 35 s at 256.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator

from evidence import read_arguments, run_all

from kilolayer.lab.characters import STANDARD_LIBRARY
from kilolayer.lab.depth_run import DepthRun
from kilolayer.lab.lr_tolerance import DEFAULT_LRS, DEFAULT_SCHEMES, Search
from kilolayer.lab.lr_tolerance_experiment import ToleranceExperiment

WARMUPS = (10, 0)
DEEP = 256
DEEP_LRS = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
"""At 256 layers a try is dear: a rate fewer at either end, and one bisection instead of two."""


def experiment(
    layers: tuple[int, ...], warmups: tuple[int, ...], *, lrs: tuple[float, ...], refinements: int
) -> ToleranceExperiment:
    """One seed; the shallow before the deep."""
    chosen = itertools.product(layers, warmups, DEFAULT_SCHEMES)
    return ToleranceExperiment(
        STANDARD_LIBRARY,
        tuple(Search(base(scheme, depth, warmup), lrs, refinements) for depth, warmup, scheme in chosen),
    )


def base(scheme: str, layers: int, warmup_steps: int) -> DepthRun:
    """The network of a search; as the command line's defaults have it."""
    return DepthRun(
        scheme,
        encoder_layers=0,
        decoder_layers=layers,
        width=32,
        num_steps=60,
        batch_size=8,
        warmup_steps=warmup_steps,
        clip=1.0,
    )


def experiments() -> Iterator[tuple[str, ToleranceExperiment]]:
    """Every experiment by folder name, the cheapest first."""
    yield "16-and-64", experiment((16, 64), WARMUPS, lrs=DEFAULT_LRS, refinements=2)
    for warmup in WARMUPS:
        yield f"{DEEP}-warmup{warmup}", experiment((DEEP,), (warmup,), lrs=DEEP_LRS, refinements=1)


def main() -> int:
    """Run or write."""
    arguments = read_arguments(__doc__, "runs/lr-tolerance-evidence")
    if arguments.action == "run":
        return run_all(experiments(), arguments)
    from lr_tolerance_page import write_page

    write_page(arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
