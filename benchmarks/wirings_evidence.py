"""The evidence behind docs/wirings.md: every experiment it reports, run or continued, one folder each.

    python benchmarks/wirings_evidence.py run   --data FOLDER_WITH_MNIST --out runs/evidence --jobs 2
    python benchmarks/wirings_evidence.py step-0 --data FOLDER_WITH_MNIST --out runs/evidence
    python benchmarks/wirings_evidence.py write --data FOLDER_WITH_MNIST --out runs/evidence

``run`` and ``step-0`` can be stopped and started again; ``write`` makes docs/wirings.md and its pictures from those.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator

from evidence import read_arguments, run_all

from kilolayer.lab.wirings import WIRINGS, WiringRun
from kilolayer.lab.wirings_experiment import WiringsExperiment

NAMES = tuple(wiring.name for wiring in WIRINGS)
WITH_NORM = ("ln", "postnorm", "prenorm", "deepnorm")
SOURCE_LRS = (0.05, 0.005, 0.001)
STEPS_AT_256 = 100
"""At 256 blocks a step takes four times as long; a third of the steps tells the outcomes apart as well."""


def runs_of(names: tuple[str, ...], lrs: tuple[float, ...], seeds: int, **options: object) -> tuple[WiringRun, ...]:
    """The runs of one experiment, seed by seed, so that what is stopped early covers every setting."""
    chosen = itertools.product(range(seeds), lrs, names)
    return tuple(WiringRun(wiring=name, lr=lr, seed=seed, **options) for seed, lr, name in chosen)  # type: ignore[arg-type]


def experiments(mnist: str) -> Iterator[tuple[str, WiringsExperiment]]:
    """Every experiment by folder name, the shortest evidence first."""
    yield "source", WiringsExperiment(mnist, runs_of(NAMES, SOURCE_LRS, 5))
    for blocks in (16, 64, 256):
        for width, (label, data) in itertools.product((128, 256), (("digits", "digits"), ("mnist", mnist))):
            for norm, names in (("layer", NAMES), ("rms", WITH_NORM)):
                steps = STEPS_AT_256 if blocks == 256 else 300
                runs = runs_of(names, (0.05,), 3, num_blocks=blocks, width=width, norm=norm, num_steps=steps)
                yield f"matrix-{label}-b{blocks}-w{width}-{norm}", WiringsExperiment(data, runs)
        if blocks == 16:
            yield from extensions(mnist)


def extensions(mnist: str) -> Iterator[tuple[str, WiringsExperiment]]:
    """Row I11 and BatchNorm's dependence on the batch."""
    lrs = (0.05, 0.005)
    yield "rms-only", WiringsExperiment(mnist, runs_of(WITH_NORM, lrs, 3, norm="rms"))
    yield "warmup", WiringsExperiment(mnist, runs_of(("postnorm",), lrs, 5, warmup_steps=100))
    for size in (2, 8, 128):
        runs = runs_of(("prenorm", "ln"), (0.05,), 3, norm="batch", num_blocks=16, batch_size=size)
        yield f"batch-{size}", WiringsExperiment(mnist, runs)
        runs = runs_of(("prenorm", "ln"), (0.05,), 3, norm="layer", num_blocks=16, batch_size=size)
        yield f"layer-{size}", WiringsExperiment(mnist, runs)


def main() -> int:
    """Run or write."""
    actions = ("run", "step-0", "write")
    arguments = read_arguments(__doc__, "runs/evidence", actions=actions, data="folder with the MNIST files")
    if arguments.action == "run":
        return run_all(experiments(arguments.data), arguments)
    if arguments.action == "step-0":
        from wirings_coverage import measure_coverage

        measure_coverage(arguments.data, arguments.out / "coverage.json")
        return 0
    from wirings_page import write_page

    write_page(arguments.data, arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
