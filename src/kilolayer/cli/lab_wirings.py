"""``kilolayer lab wirings``."""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path

import typer

from kilolayer.cli.limits import check_memory
from kilolayer.cli.places import ON

MOST_RUNS = 10_000
MOST_JOBS = 256


class Norm(str, Enum):
    """Choices of ``--norm``."""

    layer = "layer"
    rms = "rms"
    batch = "batch"


class Backend(str, Enum):
    """Choices of ``--backend``."""

    torch = "torch"
    numpy = "numpy"


def wirings(
    wiring: list[str] = typer.Option(
        [], metavar="NAME", help="A wiring to run (repeatable); all eight by default.", show_default=False
    ),
    blocks: int = typer.Option(64, help="Blocks in the network."),
    width: int = typer.Option(256, help="Units per block."),
    steps: int = typer.Option(300, help="SGD steps."),
    batch_size: int = typer.Option(128, help="Samples per step."),
    lr: list[float] = typer.Option([0.05, 0.005], metavar="RATE", help="Learning rate (repeatable)."),
    norm: Norm = typer.Option(Norm.layer, help="Norm, where a wiring has one."),
    warmup_steps: int = typer.Option(0, help="Steps of linear warm-up."),
    seeds: int = typer.Option(1, help="Seeds 0 to this number minus 1."),
    data: str = typer.Option(
        "digits",
        metavar="NAME|PATH",
        help="digits, mnist, fashion-mnist, a folder of IDX files, or an .npz with x and y.",
    ),
    backend: Backend = typer.Option(Backend.torch, help="torch, or the NumPy reference."),
    jobs: int = typer.Option(2, help="Runs at a time, one thread each."),
    on: str = ON,
    out: Path = typer.Option(Path("runs/wirings"), help="Folder for results; a rerun with the same continues."),
    json: bool = typer.Option(False, "--json", help="Print one JSON object and nothing else."),
) -> None:
    """Train eight wirings of one deep network and name what each of them lacks."""
    # Runs are one thread each, and --jobs is what fills the cores; NumPy's own threads would fight them.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    from kilolayer.lab.wirings import WIRINGS, WiringRun
    from kilolayer.lab.wirings_command import run_command

    names = list(dict.fromkeys(wiring)) or [w.name for w in WIRINGS]
    rates = list(dict.fromkeys(lr))
    check_amounts(num_runs=len(names) * len(rates) * seeds, seeds=seeds, jobs=jobs)
    check_size(blocks=blocks, width=width, batch_size=batch_size, jobs=jobs)
    runs = tuple(
        WiringRun(
            wiring=name,
            seed=seed,
            lr=rate,
            norm=norm.value,
            num_blocks=blocks,
            width=width,
            num_steps=steps,
            batch_size=batch_size,
            warmup_steps=warmup_steps,
            backend=backend.value,
        )
        for name in names
        for rate in rates
        for seed in range(seeds)
    )
    finished = run_command(data, runs, out, jobs=jobs, on=on, as_json=json)
    if not finished:
        raise typer.Exit(130)


def check_amounts(*, num_runs: int, seeds: int, jobs: int) -> None:
    """Refuse more runs or jobs than anyone means.

    Raises:
        ValueError: a number out of range.
    """
    if seeds < 1:
        raise ValueError(f"--seeds must be >= 1, got {seeds}")
    if num_runs > MOST_RUNS:
        raise ValueError(f"these are {num_runs:,} runs, an experiment holds {MOST_RUNS:,}; lower --seeds")
    if not 1 <= jobs <= MOST_JOBS:
        raise ValueError(f"--jobs must be >= 1 and at most {MOST_JOBS}, got {jobs}")


def check_size(*, blocks: int, width: int, batch_size: int, jobs: int) -> None:
    """Refuse a network that does not fit into memory as often as it runs at a time.

    Raises:
        ValueError: more memory than there is.
    """
    # Float32: two matrices per block, each with its gradient, its copy before the step and the difference; and
    # some eight activations per block that wait for the backward pass.
    needed = 4.0 * max(blocks, 0) * (2 * width**2 * 4 + 8 * batch_size * max(width, 0)) * max(jobs, 1)
    check_memory(needed, what="this experiment", remedy="lower --width, --blocks, --batch-size or --jobs")
