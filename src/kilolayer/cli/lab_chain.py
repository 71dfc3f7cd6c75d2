"""``kilolayer lab chain``."""

from __future__ import annotations

import os
from pathlib import Path

import typer

from kilolayer.cli.places import ON


def chain(
    part: list[str] = typer.Option(
        [],
        metavar="NAME",
        help="gains, rectangular, fixed-std, growth, products or batch-norm (repeatable); all by default.",
        show_default=False,
    ),
    blocks: int = typer.Option(64, help="Blocks in the networks."),
    width: int = typer.Option(64, help="Units per block."),
    seeds: int = typer.Option(3, help="Seeds 0 to this number minus 1."),
    jobs: int = typer.Option(2, help="Runs at a time, one thread each."),
    on: str = ON,
    out: Path = typer.Option(Path("runs/chain"), help="Folder for results; a rerun with the same continues."),
    json: bool = typer.Option(False, "--json", help="Print one JSON object and nothing else."),
) -> None:
    """Measure what theory says of deep chains at initialization: gains, growth, products of Jacobians, batch norm.

    gains: variance by activation and initialization. rectangular: the same up and down where widths change.
    fixed-std: std 0.02 against the width. growth: the residual stream and I + J. products: how products of random
    Jacobians widen. batch-norm: what it owes to its batch.
    """
    # Runs are one thread each, and --jobs is what fills the cores; NumPy's own threads would fight them.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    from kilolayer.lab.chain_command import run_command
    from kilolayer.lab.chain_experiment import PARTS, get_part
    from kilolayer.lab.chain_run import ChainRun

    if seeds < 1:
        raise ValueError(f"--seeds must be >= 1, got {seeds}")
    names = [get_part(name).name for name in dict.fromkeys(part)] or [one.name for one in PARTS]
    runs = tuple(
        ChainRun(part=name, num_blocks=blocks, width=width, seed=seed) for seed in range(seeds) for name in names
    )
    if not run_command(runs, out, jobs=jobs, on=on, as_json=json):
        raise typer.Exit(130)
