"""``kilolayer lab rules``."""

from __future__ import annotations

from pathlib import Path

import typer

from kilolayer.cli.places import ON
from kilolayer.cli.threads import one_thread_each


def rules(
    scheme: list[str] = typer.Option(
        [],
        metavar="NAME",
        help="A scheme, deepnorm:RULE for a rule of DeepNorm (repeatable); post-ln, pre-ln and every rule by default.",
        show_default=False,
    ),
    layers: int = typer.Option(48, help="Decoder layers."),
    width: int = typer.Option(64, help="Size of the stream."),
    steps: int = typer.Option(200, help="Optimizer steps."),
    batch_size: int = typer.Option(16, help="Sequences per step."),
    length: int = typer.Option(32, help="Characters per sequence."),
    lr: float = typer.Option(1e-3, help="Learning rate."),
    warmup_steps: int = typer.Option(0, help="Steps of linear warm-up."),
    optimizer: str = typer.Option("adamw", help="adamw, sgd (momentum 0.9) or muon."),
    init: str = typer.Option("xavier", help="Base init: xavier, kaiming, lecun, orthogonal or fixed-0.02."),
    seeds: int = typer.Option(3, help="Seeds 0 to this number minus 1."),
    data: str = typer.Option(
        "python-library", metavar="NAME|FILE", help="python-library, Python's own source, or a file of UTF-8 text."
    ),
    jobs: int = typer.Option(2, help="Runs at a time, one thread each."),
    on: str = ON,
    out: Path = typer.Option(Path("runs/rules"), help="Folder for results; a rerun with the same continues."),
    json: bool = typer.Option(False, "--json", help="Print one JSON object and nothing else."),
) -> None:
    """Train one deep language model under every rule of DeepNorm, post-LN and pre-LN: which one wins?"""
    one_thread_each()
    from kilolayer.lab.depth_run import DepthRun
    from kilolayer.lab.rules_command import run_command
    from kilolayer.lab.rules_experiment import DEFAULT_SCHEMES
    from kilolayer.lab.scheme_names import full_names

    for option, count in (("--seeds", seeds), ("--layers", layers)):
        if count < 1:
            raise ValueError(f"{option} must be >= 1, got {count}")
    runs = tuple(
        DepthRun(
            name,
            encoder_layers=0,
            decoder_layers=layers,
            seed=seed,
            lr=lr,
            width=width,
            num_steps=steps,
            batch_size=batch_size,
            length=length,
            warmup_steps=warmup_steps,
            optimizer=optimizer,
            init=init,
        )
        for seed in range(seeds)  # seed by seed, so that what is stopped early compares every scheme
        for name in full_names(scheme or DEFAULT_SCHEMES)
    )
    if not run_command(data, runs, out, jobs=jobs, on=on, as_json=json):
        raise typer.Exit(130)
