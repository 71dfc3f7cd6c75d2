"""``kilolayer train``: carry out, say what came of it."""

from __future__ import annotations

import sys
from pathlib import Path

from torch import distributed

from kilolayer.report import to_json
from kilolayer.train.recipe import Recipe
from kilolayer.train.result import Result
from kilolayer.train.run import is_main_process, train
from kilolayer.train.run_folder import read_events

STATUS = {"trained": 0, "non-finite": 1, "unstable": 1, "stopped": 130}


def run_command(recipe: Recipe, out: Path, *, as_json: bool) -> int:
    """Train, print the result on the first process, and return the exit status."""
    result = train(recipe, out)
    if is_main_process():
        print(to_json(result.to_dict()) if as_json else describe(result))
        if result.outcome == "stopped":
            print(f"Stopped after {result.step} steps; the same command goes on.", file=sys.stderr)
    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()
    return STATUS[result.outcome]


def describe(result: Result) -> str:
    """A run in a few lines."""
    lines = [] if result.verdict is None else [result.verdict]
    if result.finding is not None:
        lines.append(f"{result.finding['cause']}: {result.finding['message']} {result.finding['remedy']}")
    speed = f"{result.num_tokens:,} tokens, {result.tokens_per_s:,.0f} a second"
    lines.append(f"{result.num_parameters:,} parameters, {result.step:,} steps, {speed}")
    if result.outcome == "trained":
        lines.append(f"held-out loss {result.loss:.3f} nats per token, perplexity {result.scores['perplexity']:.2f}")
    if "nats_per_character" in result.scores:
        lines[-1] += f", {result.scores['nats_per_character']:.3f} nats per character"
    for name in ("bleu", "chrf"):
        if name in result.scores:
            lines.append(f"{result.scores[f'{name}_signature']}  {name} {result.scores[name]:.1f}")
    spikes = read_events(result.folder)
    if spikes:
        lines.append(f"{len(spikes)} spikes, the last at step {spikes[-1]['step']}; see {result.folder}/events.jsonl")
    lines.append(str(result.folder))
    return "\n".join(lines)
