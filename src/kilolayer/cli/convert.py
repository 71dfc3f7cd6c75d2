"""``kilolayer convert``: another residual scheme for a saved model, its outputs kept."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Annotated

import typer


def convert(
    checkpoint: Annotated[
        Path, typer.Argument(metavar="CHECKPOINT_DIR", help="What save_pretrained wrote: config.json and safetensors.")
    ],
    *,
    scheme: Annotated[str, typer.Option(help="What the model becomes: deepnorm or post-ln.")],
    rule: Annotated[str | None, typer.Option(help="Rule of deepnorm; the paper's unless given.")] = None,
    out: Annotated[Path | None, typer.Option(help="New directory to write; without it the plan is only shown.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Give a trained post-LN or DeepNorm model another skip scale, folded into its weights so that outputs stay.

    Every change is listed. The outputs are compared before anything is written; files appear whole or not at all.
    """
    import contextlib
    import sys

    from kilolayer.convert.directory import convert_directory, plan_directory

    with contextlib.redirect_stdout(sys.stderr):
        done = None if out is None else convert_directory(checkpoint, out, scheme, rule=rule)
        plan = plan_directory(checkpoint, scheme, rule=rule) if done is None else done.plan
    if json:
        found = {"format": 1, **plan.to_dict(), "out": None if out is None else str(out)}
        found["max_difference"] = None if done is None else done.max_difference
        typer.echo(json_format.dumps(found, allow_nan=False))
        return
    typer.echo(plan.render())
    if done is None:
        typer.echo("nothing was written; name a directory with --out")
    else:
        typer.echo(f"written to {out}; outputs differ by at most {done.max_difference:.1e}")
