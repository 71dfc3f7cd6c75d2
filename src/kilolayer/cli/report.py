"""``kilolayer report``: what a run's recording says, as a page, a picture or text."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer


class Format(str, Enum):
    """Choices of ``--format``."""

    html = "html"
    png = "png"
    json = "json"
    md = "md"
    text = "text"


FILES = (Format.html, Format.png)
"""Forms nobody reads in a terminal: they go to a file, and the terminal gets the text."""


def report(
    run: Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders of runs, or of such folders.")],
    *,
    format: Annotated[  # noqa: A002
        Format, typer.Option("--format", help="What to make; json, md and text are printed unless --out is given.")
    ] = Format.html,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where to write; report.html or .png beside the run by default."),
    ] = None,
) -> None:
    """What a run's recording says: verdict, pictures over steps and depth, loss, structure, set-up.

    A RUN is the folder that Monitor(..., out=FOLDER), a lab or a check wrote to. Several stand side by side.
    """
    from rich.console import Console

    from kilolayer.report import RENDERERS, load_report, render_screen, save_report
    from kilolayer.report.text import inert

    made = load_report(run)
    renderer = next(one for one in RENDERERS if one.name == format.value)
    if out is not None and out.suffix.lower() != renderer.suffix:
        raise ValueError(f"--out must end in {renderer.suffix} for --format {format.value}, got {out}")
    if format in FILES or (format is Format.text and out is None):
        brief = format in FILES and len(made.runs) > 1
        Console().print(render_screen(made.runs, title=made.title, sentence=made.sentence, brief=brief))
    elif out is None:
        typer.echo(renderer.render(made).decode(), nl=False)
    if format in FILES or out is not None:
        folder = run[0] if len(run) == 1 else Path()
        path = save_report(made, out or folder / f"report{renderer.suffix}")
        typer.echo(f"Report: {inert(str(path))}")
