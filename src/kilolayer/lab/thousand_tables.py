"""The tables and the verdict of ``kilolayer lab thousand``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from kilolayer.lab.effective_depth import STACKS
from kilolayer.lab.thousand_results import ThousandResult, sentence, spread
from kilolayer.lab.training import LAST_STEPS
from kilolayer.report import format_number, render_table, sparkline

CURVE_WIDTH = 12
EVERYWHERE = ("depth_name", "lr", "head", "seed")
"""What tells runs apart besides the scheme."""


def print_results(results: Sequence[ThousandResult], console: Console) -> None:
    """Print what each run learned, how its gradients lie and what its layers do, then the sentence."""
    names = names_of(results)
    console.print(learning_table(results, names))
    console.print()
    console.print(gradient_table(results, names))
    console.print()
    if any("dev_loss" in result.numbers for result in results):
        console.print(use_table(results, names))
        console.print()
    console.print(Text(sentence(results)))


def names_of(results: Sequence[ThousandResult]) -> list[str]:
    """What tells each run from the others: the scheme, and depth, rate and seed where they are not all the same."""
    differing = [name for name in EVERYWHERE if len({getattr(result.run, name) for result in results}) > 1]
    names = []
    for result in results:
        run = result.run
        parts = {
            "depth_name": run.depth_name,
            "lr": f"lr {run.lr:g}",
            "head": f"{run.head} head",
            "seed": f"seed {run.seed}",
        }
        names.append(" ".join([run.scheme, *(parts[name] for name in differing)]))
    return names


def learning_table(results: Sequence[ThousandResult], names: Sequence[str]) -> Any:
    """Losses, their curve, time and memory, and the outcome."""
    header = ["run", "loss", "curve", "held-out", "unigram", "outcome", "steps", "hours", "GiB"]
    rows = [[name, *learning_row(result)] for name, result in zip(names, results, strict=True)]
    caption = (
        f"Losses in nats per token: the mean of the last {LAST_STEPS} steps, then of held-out pairs; unigram is what "
        "knowing nothing but the frequency of each token gives there."
    )
    return render_table(header, rows, title="Learning", caption=caption)


def learning_row(result: ThousandResult) -> list[Any]:
    """One run's cells of the table of losses."""
    run, numbers = result.run, result.numbers
    parts = np.array_split(np.array(numbers["losses"], dtype=np.float64), CURVE_WIDTH)
    means = np.array([part.mean() for part in parts if len(part)])
    return [
        result.train_loss,
        sparkline(means, ~np.isfinite(means), width=CURVE_WIDTH),
        numbers.get("dev_loss"),
        numbers.get("dev_unigram_loss"),
        result.outcome,
        f"{len(numbers['losses'])} of {run.num_steps}",
        format_number(numbers["seconds"] / 3600, digits=2),
        format_number(numbers["peak_memory_mib"] / 1024, digits=2),
    ]


def gradient_table(results: Sequence[ThousandResult], names: Sequence[str]) -> Any:
    """Gradient norms at the bottom, in the middle and at the top of each stack, and the spread of all branches."""
    header = ["run", "stack", "bottom", "middle", "top", "max/min", "at step 0"]
    rows = [[name, *row] for name, result in zip(names, results, strict=True) for row in gradient_rows(result)]
    title = f"Gradient by branch, mean of the last {LAST_STEPS} steps"
    caption = "max/min: largest over smallest norm of all branches of the stack; at step 0 beside it."
    return render_table(header, rows, title=title, caption=caption)


def gradient_rows(result: ThousandResult) -> list[list[str]]:
    """One run's cells of the table of gradients, a row per stack."""
    rows = []
    for stack in STACKS:
        grads = result.grads[stack]
        spreads = (spread(grads), spread(result.grads_at_start[stack]))
        ends = (format_number(grads[place], digits=2) for place in (0, len(grads) // 2, -1))
        # Behind a head of zeros no branch gets a gradient at step 0, and there is no ratio to tell.
        ratios = ("-" if math.isnan(one) else format_number(one, digits=2) for one in spreads)
        rows.append([stack, *ends, *ratios])
    return rows


def use_table(results: Sequence[ThousandResult], names: Sequence[str]) -> Any:
    """What the encoder and the layers are worth, and the translations."""
    measured = [(name, result) for name, result in zip(names, results, strict=True) if "dev_loss" in result.numbers]
    header = ["run", "encoder use", "cosine", "encoder depth", "decoder depth", "BLEU", "exact"]
    rows = [[name, *use_row(result)] for name, result in measured]
    numbers = measured[0][1].numbers
    sampled = max(len(numbers["layer_skips"][stack]["layer"]) for stack in STACKS)
    caption = (
        "Encoder use: rise of the held-out loss beside the source of another pair. Cosine: of the encoder's outputs at "
        "any two places; 1 says the same of every token. Depth: how many layers matter, by the rise when one is "
        f"skipped, from {sampled} layers of each stack at most. BLEU of "
        f"{numbers['bleu_sentences']} test sentences, {numbers['bleu_signature']}"
    )
    return render_table(header, rows, title="Use of source and depth", caption=caption)


def use_row(result: ThousandResult) -> list[str]:
    """One run's cells of the table of use."""
    numbers = result.numbers
    use, error = (format_number(numbers[key], digits=2) for key in ("encoder_use", "encoder_use_error"))
    depths = [
        f"{numbers['effective_depth'][stack]:.0f} of {getattr(result.run, f'{stack}_layers')}" for stack in STACKS
    ]
    cosine = format_number(numbers["encoder_cosine"]) if "encoder_cosine" in numbers else "-"
    return [
        f"{use} +- {error}",
        cosine,
        *depths,
        format_number(numbers["bleu"]),
        f"{100 * numbers['exact_share']:.0f} %",
    ]
