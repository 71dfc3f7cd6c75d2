"""What came out of ``kilolayer lab thousand``: numbers of every run, finished or not, its outcome, and one sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kilolayer.lab.depth_run import DepthRun, to_record
from kilolayer.lab.effective_depth import STACKS
from kilolayer.lab.experiment import finished_runs, unfinished_folder
from kilolayer.lab.thousand_experiment import ThousandExperiment
from kilolayer.lab.training import CHECKPOINT, LAST_STEPS
from kilolayer.report import format_number

FALLING = 0.01
"""A loss that falls by more than this share of itself from one fifth of the steps to the next is still falling."""

USED_SHARE, SIGNIFICANT = 0.01, 3.0
"""The source counts as used if the wrong one costs this share of what the model knows beyond frequencies, and so many
standard errors."""

TRAINS, UNFINISHED = "trains", "unfinished"
FATES = {
    "source-unused": "learned the target's language but not from its source",
    "slow": "did not get beyond token frequencies, but was still learning",
    "stuck": "did not get beyond token frequencies",
    "non-finite": "ended at a loss that is not finite",
}
"""Outcomes besides :data:`TRAINS`, which is to know more than frequencies and from the source, and what they mean."""


@dataclass(frozen=True, eq=False)
class ThousandResult:
    """One run, finished or not, and what was measured of it."""

    run: DepthRun
    numbers: dict[str, Any]
    is_finished: bool = True

    @property
    def train_loss(self) -> float:
        """Mean over the last steps, in nats per token; NaN where one of them is not finite."""
        return float(np.mean(self.numbers["losses"][-LAST_STEPS:]))

    @property
    def outcome(self) -> str:
        """:data:`TRAINS`, :data:`UNFINISHED`, or one of :data:`FATES`."""
        numbers = self.numbers
        if numbers["nonfinite_step"] is not None:
            return "non-finite"
        if not self.is_finished:
            return UNFINISHED
        if not math.isfinite(numbers["dev_loss"]):
            return "non-finite"
        gain = numbers["dev_unigram_loss"] - numbers["dev_loss"]
        if gain <= 0:
            return "slow" if self.is_falling else "stuck"
        least_use = max(USED_SHARE * gain, SIGNIFICANT * numbers["encoder_use_error"])
        return TRAINS if numbers["encoder_use"] > least_use else "source-unused"

    @property
    def is_falling(self) -> bool:
        """Whether the last fifth of the steps has a clearly lower loss than the fifth before it."""
        losses = np.array(self.numbers["losses"], dtype=np.float64)
        fifth = max(len(losses) // 5, 1)
        if len(losses) < 2 * fifth:
            return False
        before, last = losses[-2 * fifth : -fifth], losses[-fifth:]
        error = math.sqrt((before.var() + last.var()) / fifth)  # batches of one length each scatter widely
        return bool(before.mean() - last.mean() > max(FALLING * before.mean(), SIGNIFICANT * error))

    @cached_property
    def grads(self) -> dict[str, np.ndarray]:
        """Gradient norm of each stack's branches, bottom to top, mean over the last steps."""
        return self._by_stack("grad_norm_by_branch")

    @cached_property
    def grads_at_start(self) -> dict[str, np.ndarray]:
        """Gradient norm of each stack's branches at step 0."""
        return self._by_stack("grad_norm_by_branch_at_start")

    def _by_stack(self, key: str) -> dict[str, np.ndarray]:
        stacks, norms = np.array(self.numbers["stacks"]), np.array(self.numbers[key], dtype=np.float64)
        return {stack: norms[stacks == stack] for stack in STACKS}


def spread(norms: np.ndarray) -> float:
    """Largest over smallest; infinite where a branch gets no gradient, NaN where none does or one is not finite.

    Examples:
        >>> spread(np.array([0.5, 2.0, 1.0])), spread(np.array([0.0, 1.0])), spread(np.array([0.0, 0.0]))
        (4.0, inf, nan)
    """
    if not np.isfinite(norms).all() or not norms.any():
        return math.nan
    return float(norms.max() / norms.min()) if norms.min() > 0 else math.inf


def load_results(experiment: ThousandExperiment, folder: Path) -> list[ThousandResult]:
    """Every run that has taken a step, in the experiment's order."""
    finished = finished_runs(experiment, folder)
    found = []
    for run in experiment.runs:
        numbers = finished.get(run) or _read_checkpoint(run, folder)
        if numbers is not None:
            found.append(ThousandResult(run, numbers, is_finished=run in finished))
    return found


def _read_checkpoint(run: DepthRun, folder: Path) -> dict[str, Any] | None:
    """What was measured so far of a run that was stopped."""
    path = unfinished_folder(run, folder) / CHECKPOINT
    if not path.is_file():
        return None
    # The weights, nearly all of the file, stay on disk.
    state = torch.load(path, weights_only=True, mmap=True)
    grads = state["grads"]
    return {
        "losses": state["losses"],
        "grad_norm_by_branch": grads[-LAST_STEPS:].mean(0).tolist(),
        "grad_norm_by_branch_at_start": grads[0].tolist(),
        "stacks": ["encoder"] * (2 * run.encoder_layers) + ["decoder"] * (3 * run.decoder_layers),
        "nonfinite_step": None,
        "seconds": state["seconds"],
        "peak_memory_mib": state["peak_mib"],
    }


def to_json_record(result: ThousandResult) -> dict[str, Any]:
    """One run as the entry of ``runs`` in ``kilolayer lab thousand --json``, format 1."""
    spreads = {
        "grad_spread": {stack: spread(norms) for stack, norms in result.grads.items()},
        "grad_spread_at_start": {stack: spread(norms) for stack, norms in result.grads_at_start.items()},
    }
    facts = {"outcome": result.outcome, "steps_done": len(result.numbers["losses"]), "train_loss": result.train_loss}
    return to_record(result.run, result.numbers | facts | spreads)


def sentence(results: Sequence[ThousandResult]) -> str:
    """The experiment in a sentence per depth: which schemes learned to translate, and what became of the others."""
    groups: dict[str, list[ThousandResult]] = {}
    for result in results:
        groups.setdefault(result.run.depth_name, []).append(result)
    return " ".join(_sentence_of_depth(depth, group) for depth, group in groups.items())


def _sentence_of_depth(depth: str, results: Sequence[ThousandResult]) -> str:
    by_outcome: dict[str, list[ThousandResult]] = {}
    for result in results:
        by_outcome.setdefault(result.outcome, []).append(result)
    by_outcome.pop(UNFINISHED, None)
    if not by_outcome:
        return f"At {depth} layers no run is finished yet."
    good = by_outcome.pop(TRAINS, [])
    said = [_praise(good) if good else f"none learns from the source in {results[0].run.num_steps} steps"]
    said += [f"{_names(group)} {FATES[outcome]}" for outcome, group in by_outcome.items()]
    return f"At {depth} layers {'; '.join(said)}."


def _praise(good: Sequence[ThousandResult]) -> str:
    best = min(good, key=lambda result: result.numbers["dev_loss"])
    numbers, spreads = best.numbers, [spread(norms) for norms in best.grads.values()]
    return (
        f"{_names(good)} learned from the source: {best.run.scheme} ends at a held-out loss of "
        f"{numbers['dev_loss']:.2f} (frequencies alone {numbers['dev_unigram_loss']:.2f}), "
        f"{format_number(numbers['encoder_use'])} more with the wrong source, and its branches' gradients lie within "
        f"a factor of {format_number(max(spreads), digits=2)} in each stack"
    )


def _names(results: Sequence[ThousandResult]) -> str:
    return ", ".join(dict.fromkeys(f"{one.run.scheme} (lr {one.run.lr:g})" for one in results))
