"""``kilolayer lab depth``."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import typer

from kilolayer.cli.places import ON
from kilolayer.cli.threads import one_thread_each

Number = TypeVar("Number", int, float)

VARIED = {"scheme": "--schemes", "decoder_layers": "--layers", "lr": "--lr", "seed": "--seeds"}
"""Fields of the recipe that the grid sets itself, and the options that say to what."""


def depth(
    schemes: str = typer.Option(
        "post-ln,pre-ln,sandwich-ln,deepnorm", metavar="A,B", help="Schemes, or deepnorm:RULE, with commas in between."
    ),
    layers: str = typer.Option("8,32,128", metavar="N,M", help="Depths, with commas in between."),
    lr: str = typer.Option("1e-3", metavar="RATE,RATE", help="Learning rates, with commas in between."),
    seeds: int = typer.Option(3, help="Seeds 0 to this number minus 1."),
    steps: int = typer.Option(200, help="Optimizer steps."),
    change: list[str] = typer.Option(
        [], "--set", metavar="NAME=VALUE", help="Any setting of the recipe (repeatable), such as --set width=32."
    ),
    data: str = typer.Option(
        "python-library", metavar="NAME|FILE", help="python-library, Python's own source, or a file of UTF-8 text."
    ),
    jobs: int = typer.Option(2, help="Cells at a time, one thread each."),
    on: str = ON,
    out: Path = typer.Option(Path("runs/depth"), help="Folder for results; a rerun fills what is missing."),
    json: bool = typer.Option(False, "--json", help="Print one JSON object and nothing else."),
) -> None:
    """Train language models over a grid of schemes, depths, rates and seeds, each cell a run of its own."""
    one_thread_each()
    from kilolayer.lab.depth_cells import build_grid
    from kilolayer.lab.depth_command import run_command
    from kilolayer.lab.scheme_names import full_names
    from kilolayer.train.recipe import parse_settings
    from kilolayer.train.recipes import load_recipe

    if seeds < 1:
        raise ValueError(f"--seeds must be >= 1, got {seeds}")
    small = {
        "width": 64,
        "head_width": 16,
        "length": 32,
        "batch_size": 16,
        "warmup_steps": 0,
        "schedule": "constant",
        "weight_decay": 0.0,
        "eval_every": steps,
        "save_every": 50,
        "keep_last": 1,
        "monitor_every": 50,
    }
    given = parse_settings(change)
    for name, option in VARIED.items():
        if name in given:
            raise ValueError(f"--set {name} is what the grid varies; use {option}")
    changes = small | {"data": data, "steps": steps} | given
    depths, rates = _numbers(layers, int, "--layers"), _numbers(lr, float, "--lr")
    try:
        experiment = build_grid(
            load_recipe("language", changes), full_names(schemes.split(",")), layers=depths, lrs=rates, seeds=seeds
        )
    except TypeError as error:  # what was typed is of another kind
        raise ValueError(str(error)) from error
    if not run_command(experiment, out, jobs=jobs, on=on, as_json=json):
        raise typer.Exit(130)


def _numbers(text: str, kind: type[Number], option: str) -> list[Number]:
    """The numbers of a list."""
    try:
        return [kind(one) for one in text.split(",")]
    except ValueError:
        wanted = "whole numbers" if kind is int else "numbers"
        raise ValueError(f"{option} takes {wanted} with commas in between, got {text!r}") from None
