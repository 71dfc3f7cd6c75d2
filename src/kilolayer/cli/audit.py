"""``kilolayer audit``: whether a model is what it claims to be."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Annotated, Any

import typer


def audit(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="FILE.py:FUNCTION that returns (model, inputs), or a saved model's folder."
        ),
    ],
    *,
    scheme: Annotated[
        str | None, typer.Option(help="What the model claims to be; deepnorm where it says nothing.")
    ] = None,
    rule: Annotated[str | None, typer.Option(help="Rule of deepnorm.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Skip scales against depth, init gains per projection, biases, copied layers, embeddings and head, final norm.

    Exit status 1 if there is a fault. A FUNCTION takes no arguments and returns what kilolayer structure takes.
    """
    import contextlib
    import sys

    from kilolayer.convert import audit as audit_model

    # What the user's code prints is not the answer.
    with contextlib.redirect_stdout(sys.stderr):
        found_model, inputs = _load(model)
        found = audit_model(found_model, scheme, rule=rule, inputs=inputs)
    typer.echo(json_format.dumps(found.to_dict(), allow_nan=False) if json else found.render())
    if found.faults:
        raise typer.Exit(1)


def _load(target: str) -> tuple[Any, Any]:
    if ".py:" in target:
        from kilolayer.structure.loading import load_model

        return load_model(target)
    from kilolayer.convert.directory import load_directory

    if not Path(target).is_dir():
        raise ValueError(f"expected FILE.py:FUNCTION or the folder of a saved model, got {target!r}")
    return load_directory(target), None
