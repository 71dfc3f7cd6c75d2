"""``kilolayer lab lr-tolerance``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import typer

from kilolayer.cli.places import ON
from kilolayer.cli.threads import one_thread_each


def lr_tolerance(
    scheme: list[str] = typer.Option(
        [],
        metavar="NAME",
        help="A scheme (repeatable); post-ln, deepnorm, pre-ln, keel and sandwich-ln by default.",
        show_default=False,
    ),
    layers: list[int] = typer.Option([16, 64, 256], help="Decoder layers (repeatable)."),
    width: int = typer.Option(32, help="Size of the stream."),
    steps: int = typer.Option(60, help="Optimizer steps of every try."),
    batch_size: int = typer.Option(8, help="Sequences per step."),
    length: int = typer.Option(32, help="Characters per sequence."),
    lr: list[float] = typer.Option(
        [3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1], metavar="RATE", help="A rate of the grid (repeatable)."
    ),
    refinements: int = typer.Option(2, help="Bisections between the last stable rate and the next."),
    warmup_steps: list[int] = typer.Option([0, 10], help="Steps of linear warm-up (repeatable)."),
    clip: float = typer.Option(1.0, help="Largest global gradient norm; 0 for no limit."),
    optimizer: str = typer.Option("adamw", help="adamw, sgd (momentum 0.9) or muon."),
    seeds: int = typer.Option(1, help="Seeds 0 to this number minus 1."),
    data: str = typer.Option(
        "python-library", metavar="NAME|FILE", help="python-library, Python's own source, or a file of UTF-8 text."
    ),
    jobs: int = typer.Option(2, help="Searches at a time, one thread each."),
    on: str = ON,
    out: Path = typer.Option(Path("runs/lr-tolerance"), help="Folder for results; a rerun with the same continues."),
    json: bool = typer.Option(False, "--json", help="Print one JSON object and nothing else."),
) -> None:
    """Find the largest learning rate at which a deep language model trains, by scheme, depth and warm-up."""
    one_thread_each()
    from kilolayer.lab.depth_run import DepthRun
    from kilolayer.lab.lr_tolerance import DEFAULT_SCHEMES, Search
    from kilolayer.lab.lr_tolerance_command import run_command
    from kilolayer.lab.scheme_names import full_names

    for option, count in (("--seeds", seeds), ("--layers", min(layers))):
        if count < 1:
            raise ValueError(f"{option} must be >= 1, got {count}")
    base = DepthRun(
        "pre-ln",
        encoder_layers=0,
        decoder_layers=min(layers),
        width=width,
        num_steps=steps,
        batch_size=batch_size,
        length=length,
        optimizer=optimizer,
        clip=clip or None,
    )
    rates = tuple(sorted(set(lr)))
    searches = tuple(
        Search(replace(base, scheme=name, decoder_layers=depth, warmup_steps=warmup, seed=seed), rates, refinements)
        for seed in range(seeds)
        for depth in dict.fromkeys(layers)
        for warmup in dict.fromkeys(warmup_steps)
        for name in full_names(scheme or DEFAULT_SCHEMES)
    )
    if not run_command(data, searches, out, jobs=jobs, on=on, as_json=json):
        raise typer.Exit(130)
