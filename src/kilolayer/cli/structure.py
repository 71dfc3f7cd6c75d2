"""``kilolayer structure``: the residual structure of a model, read from one forward pass."""

from __future__ import annotations

import json as json_format
from typing import Annotated

import typer


def structure(
    target: Annotated[
        str, typer.Argument(metavar="FILE.py:FUNCTION", help="A function that returns (model, inputs), or a set-up.")
    ],
    *,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """What a model is: its residual branches in order, norms, skip factors, attention, and the scheme that makes.

    The function takes no arguments and returns (model, inputs), (model, inputs, targets, loss_fn, optimizer) or
    a set-up; inputs are a tuple of positional ones, a dictionary of keyword ones, or one tensor.
    """
    import contextlib
    import sys

    from kilolayer.structure.drawing import render_structure
    from kilolayer.structure.loading import read_target

    # What the user's code prints is not the answer.
    with contextlib.redirect_stdout(sys.stderr):
        found = read_target(target)
    typer.echo(json_format.dumps(found.to_dict(), allow_nan=False) if json else render_structure(found))
