"""``kilolayer explain``: what a code of a finding stands for."""

from __future__ import annotations

from typing import Annotated

import typer


def explain(
    code: Annotated[str | None, typer.Argument(help="A code such as DEP601, or a cause; none: all of them.")] = None,
) -> None:
    """What a code means, the number that shows it, what helps, and when it is a false alarm."""
    import os

    from kilolayer.diagnosis.explain import explain as explain_code
    from kilolayer.diagnosis.explain import list_codes

    width = int(os.environ.get("COLUMNS", "100"))
    typer.echo(list_codes() if code is None else explain_code(code, width=width))
