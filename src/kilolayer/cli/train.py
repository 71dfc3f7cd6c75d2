"""``kilolayer train``."""

from __future__ import annotations

from pathlib import Path

import typer


def train(
    recipe: str = typer.Argument(metavar="RECIPE", help="language, translation, or FILE.py:FUNCTION."),
    data: str | None = typer.Option(
        None,
        metavar="FILE",
        help="UTF-8 text, or sentence pairs (.zip, .tsv, .txt: source, tab, target); or datasets:NAME.",
        show_default=False,
    ),
    scheme: str | None = typer.Option(None, metavar="NAME", help="Scheme, or deepnorm:RULE.", show_default=False),
    layers: int | None = typer.Option(None, metavar="N", help="Layers (of each stack).", show_default=False),
    steps: int | None = typer.Option(None, metavar="N", help="Optimizer steps.", show_default=False),
    change: list[str] = typer.Option(
        [], "--set", metavar="NAME=VALUE", help="Any setting of the recipe (repeatable), such as --set lr=1e-3."
    ),
    out: Path = typer.Option(Path("runs/train"), help="Folder of the run; a rerun with the same goes on."),
    json: bool = typer.Option(False, "--json", help="Print one JSON object and nothing else."),
) -> None:
    """Train a deep Transformer on your text or sentence pairs; the same command goes on where a run was stopped.

    Under accelerate launch or torchrun it runs on many processes or machines as it is.
    """
    from kilolayer.cli.training import run_command
    from kilolayer.train.recipe import parse_settings
    from kilolayer.train.recipes import load_recipe

    named = {"data": data, "scheme": scheme, "layers": layers, "steps": steps}
    changes = {name: value for name, value in named.items() if value is not None} | parse_settings(change)
    try:
        settings = load_recipe(recipe, changes)
    except TypeError as error:  # what was typed is of another kind
        raise ValueError(str(error)) from error
    status = run_command(settings, out, as_json=json)
    if status:
        raise typer.Exit(status)
