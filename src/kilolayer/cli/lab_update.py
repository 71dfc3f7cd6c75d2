"""``kilolayer lab update``."""

from __future__ import annotations

import os
from enum import Enum
from itertools import product
from pathlib import Path

import typer

from kilolayer.cli.places import ON


class Network(str, Enum):
    """Choices of ``--network``."""

    decoder = "decoder"
    encoder = "encoder"
    mlp = "mlp"


class Optimizer(str, Enum):
    """Choices of ``--optimizer``."""

    sgd = "sgd"
    adamw = "adamw"


SCHEMES = ("post-ln", "post-ln:beta-only", "deepnorm", "pre-ln")
BRANCHES = (10, 32, 100, 316)
LRS = {Optimizer.sgd: 1e-3, Optimizer.adamw: 1e-4}


def update(
    scheme: list[str] = typer.Option(
        [],
        metavar="NAME[:RULE]",
        help="A scheme (repeatable): any with skips, post-ln:beta-only (DeepNorm's initial values alone), "
        "deepnorm:power-P (another exponent than 1/4). Default: post-ln, post-ln:beta-only, deepnorm, pre-ln.",
        show_default=False,
    ),
    branches: list[int] = typer.Option(
        BRANCHES, metavar="N", help="Residual branches (repeatable); two per Transformer layer."
    ),
    network: list[Network] = typer.Option(
        [Network.decoder], help="Transformer layers with causal attention, without, or an MLP (repeatable)."
    ),
    optimizer: list[Optimizer] = typer.Option([Optimizer.sgd, Optimizer.adamw], help="Optimizer (repeatable)."),
    lr: list[float] = typer.Option(
        [], metavar="RATE", help="Learning rate (repeatable). Default: 0.001 with sgd, 0.0001 with adamw."
    ),
    width: int = typer.Option(64, help="Units of the stream."),
    steps: int = typer.Option(8, help="Steps to take; updates are read after 1, 2, 4, 8, ..."),
    seeds: int = typer.Option(1, help="Seeds 0 to this number minus 1."),
    jobs: int = typer.Option(2, help="Runs at a time, one thread each."),
    on: str = ON,
    out: Path = typer.Option(Path("runs/update"), help="Folder for results; a rerun with the same continues."),
    json: bool = typer.Option(False, "--json", help="Print one JSON object and nothing else."),
) -> None:
    """Measure how far the first steps move what a deep network computes, beside theory's bound.

    Shows too why: what branch and skip bring to each sum, the norms' Jacobians, how alike layers are, and gradients
    at the bottom and at the top, before and after the steps.
    """
    # Runs are one thread each, and --jobs is what fills the cores; NumPy's own threads would fight them.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    from kilolayer.lab.update_command import run_command
    from kilolayer.lab.update_run import UpdateRun

    if seeds < 1:
        raise ValueError(f"--seeds must be >= 1, got {seeds}")
    chosen = product(network, optimizer, list(dict.fromkeys(scheme)) or SCHEMES, sorted(set(branches)), range(seeds))
    runs = tuple(
        UpdateRun(
            scheme=name,
            num_branches=count,
            network=kind.value,
            optimizer=method.value,
            lr=rate,
            seed=seed,
            width=width,
            num_steps=steps,
        )
        for kind, method, name, count, seed in chosen
        for rate in dict.fromkeys(lr or [LRS[method]])
    )
    if not run_command(tuple(dict.fromkeys(runs)), out, jobs=jobs, on=on, as_json=json):
        raise typer.Exit(130)
