"""``kilolayer sample``."""

from __future__ import annotations

from pathlib import Path

import typer


def sample(
    run: Path = typer.Argument(metavar="RUN", help="Folder of a run of kilolayer train language."),
    prompt: str = typer.Option("", metavar="TEXT", help="What the text begins with.", show_default=False),
    length: int = typer.Option(200, help="Tokens to draw."),
    temperature: float = typer.Option(0.8, help="0 takes the likeliest token, 1 draws as the model says."),
    top_k: int = typer.Option(0, metavar="N", help="Draw from the N likeliest tokens; 0: from all."),
    seed: int = typer.Option(0, help="The same seed gives the same text."),
) -> None:
    """Write text with a trained language model."""
    from kilolayer.train.loading import load_sampler

    if top_k < 0:
        raise ValueError(f"--top-k must be >= 0, got {top_k}")
    sampler = load_sampler(run)
    print(sampler.sample(prompt, length, temperature=temperature, top_k=top_k or None, seed=seed))
