"""``kilolayer translate``."""

from __future__ import annotations

import sys
from pathlib import Path

import typer


def translate(
    run: Path = typer.Argument(metavar="RUN", help="Folder of a run of kilolayer train translation."),
    sentences: list[str] = typer.Argument(
        None, metavar="[SENTENCE]...", help="Sentences; without any, the lines of standard input."
    ),
    beam_size: int = typer.Option(4, help="Hypotheses kept; 1 takes the likeliest token each time."),
) -> None:
    """Translate sentences with a trained model, one a line."""
    from kilolayer.train.loading import load_translator

    translator = load_translator(run)
    lines = sentences or sys.stdin.read().removesuffix("\n").split("\n")
    # A blank line of standard input stays one, so that line n of the output is that of the input.
    wanted = sentences or [line for line in lines if line.strip()]
    if not wanted:
        raise ValueError("there is no sentence to translate: name some, or give them on standard input")
    found = iter(translator.translate(wanted, beam_size=beam_size))
    for line in lines:
        print(next(found) if line.strip() else "")
