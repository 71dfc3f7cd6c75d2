"""The evidence behind docs/thousand.md: every experiment it reports, run or continued, one folder each.

    python benchmarks/thousand_evidence.py run   --data deu-eng.zip --out runs/thousand-evidence --jobs 2
    python benchmarks/thousand_evidence.py write --data deu-eng.zip --out runs/thousand-evidence

``run`` can be stopped and started again; ``write`` makes docs/thousand.md and its pictures from what has been run.
A run of 500 + 500 layers takes 400 steps of 3 to 4 s on one core, and 2.7 GiB; one of 30 + 30 layers, 75 s.
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Iterator

from evidence import read_arguments, run_all

from kilolayer.lab.calibrated_head import HEADS
from kilolayer.lab.depth_run import DepthRun
from kilolayer.lab.thousand_experiment import ThousandExperiment
from kilolayer.lab.translation_data import NUMBER_WORDS

SCHEMES = ("deepnorm:deepnet", "pre-ln", "post-ln")
DEPTHS = (6, 12, 18, 30, 60)
SMALL_LR, LARGE_LR = 3e-4, 1e-3
COMMON = {"batch_size": 32, "length": 24}


def experiments(data: str) -> Iterator[tuple[str, ThousandExperiment]]:
    """Every experiment by folder name, the shortest first."""
    small = tuple(small_run(scheme, layers, lr=SMALL_LR) for layers, scheme in itertools.product(DEPTHS, SCHEMES))
    yield "thousand-depths", ThousandExperiment(NUMBER_WORDS, small, vocab_size=200, depth_samples=16)
    seeds = {"deepnorm:deepnet": 3, "pre-ln": 1, "post-ln": 1}
    heads = tuple(
        small_run(scheme, 30, lr=lr, seed=seed, head=head)
        for lr, head, (scheme, count) in itertools.product((LARGE_LR, SMALL_LR), HEADS, seeds.items())
        for seed in range(count)
    )
    yield "thousand-heads", ThousandExperiment(NUMBER_WORDS, heads, vocab_size=200, depth_samples=16)
    large = tuple(DepthRun(scheme, 500, 500, lr=1e-4, num_steps=400, **COMMON) for scheme in SCHEMES)  # type: ignore[arg-type]
    yield "thousand", ThousandExperiment(data, large, vocab_size=2000, depth_samples=16)
    calibrated = (dataclasses.replace(large[0], head="calibrated"),)
    yield "thousand-calibrated", ThousandExperiment(data, calibrated, vocab_size=2000, depth_samples=16)


def small_run(scheme: str, layers: int, *, lr: float, seed: int = 0, head: str = "tied") -> DepthRun:
    """Number words, a minute or so."""
    return DepthRun(scheme, layers, layers, lr=lr, seed=seed, head=head, num_steps=300, **COMMON)  # type: ignore[arg-type]


def main() -> int:
    """Run or write."""
    arguments = read_arguments(__doc__, "runs/thousand-evidence", data="Tatoeba's pairs, deu-eng.zip")
    if arguments.action == "run":
        return run_all(experiments(arguments.data), arguments)
    from thousand_page import write_page

    write_page(arguments.data, arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
