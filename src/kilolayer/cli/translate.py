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
    lines = sentences or [line for line in sys.stdin.read().splitlines() if line.strip()]
    if not lines:
        raise ValueError("there is no sentence to translate: name some, or give them on standard input")
    for line in translator.translate(lines, beam_size=beam_size):
        print(line)
