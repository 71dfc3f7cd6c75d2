"""The runs of ``kilolayer lab depth``: one language model under many schemes, depths, rates and seeds, each a run of
the training engine."""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kilolayer.lab.experiment import OnStep
from kilolayer.lab.memory import peak_memory_mib, reset_peak_memory
from kilolayer.train import Recipe, Result, load_recording, train
from kilolayer.train.run import load_task

RUN = "run"
"""Folder of a cell's run: settings, environment, recording, verdict, result."""

BELOW_FREQUENCIES = 0.05
"""Nats that a run has to end below what knowing the frequencies alone is worth, to count as training."""


@dataclass(frozen=True)
class DepthCell:
    """One run of the grid."""

    recipe: Recipe

    @property
    def folder_name(self) -> str:
        """Tells the cells of one grid apart."""
        recipe = self.recipe
        return f"{recipe.scheme.replace(':', '-')}-{recipe.decoder_layers}-lr{recipe.lr:g}-seed{recipe.seed}"

    @property
    def num_steps(self) -> int:
        """Steps of work."""
        return self.recipe.steps


@dataclass(frozen=True)
class DepthExperiment:
    """Cells that share all settings but scheme, depth, rate and seed."""

    runs: tuple[DepthCell, ...]

    @property
    def continues(self) -> bool:
        """A cell goes on from its newest checkpoint."""
        return True

    def shared(self) -> dict[str, Any]:
        """The settings that decide whether two grids may share a folder."""
        own = ("scheme", "decoder_layers", "lr", "seed")
        return {"lab": "depth"} | {key: value for key, value in self.runs[0].recipe.to_dict().items() if key not in own}

    def load_data(self) -> str:
        """The checksum of the text, which each run reads for itself."""
        return load_task(self.runs[0].recipe).checksum

    def data_check(self, data: str) -> str:
        """The checksum."""
        return data

    def carry_out(self, run: DepthCell, data: str, folder: Path, on_step: OnStep) -> dict[str, Any]:
        """One cell."""
        reset_peak_memory()
        result = train(run.recipe, folder / RUN, on_step=on_step)
        if result.outcome == "stopped":
            raise KeyboardInterrupt
        return {
            **_measurements(folder / RUN),
            "held_out_loss": result.loss,
            "frequency_loss": result.scores.get("frequency_loss"),
            "nonfinite_step": result.step if result.outcome == "non-finite" else None,
            "outcome": judge(result),
            "verdict": result.verdict,
            "finding": result.finding,
            "seconds": result.seconds,
            "peak_memory_mib": peak_memory_mib(),
            "data_check": data,
        }


def judge(result: Result) -> str:
    """``"non-finite"``, ``"stuck"`` at the frequencies of the tokens, or ``"trains"``."""
    if result.outcome != "trained":
        return result.outcome
    return "trains" if result.loss < result.scores["frequency_loss"] - BELOW_FREQUENCIES else "stuck"


def _measurements(folder: Path) -> dict[str, Any]:
    """Losses of all steps, and the gradient norm of every branch at the last sampled one."""
    recording = load_recording(folder)
    _, losses = recording.series("run", "run", "loss")
    names = [site.name for site in recording.weights()]
    _, norms = recording.matrix("param_grad", "l2_norm", names)
    squares: dict[tuple[int, bool], float] = {}
    for name, norm in zip(names, norms[-1], strict=True):
        found = re.search(r"layers\.(\d+)\.(self_attn|linear)", name)
        if found is not None:
            key = int(found[1]), found[2] == "linear"
            squares[key] = squares.get(key, 0.0) + float(norm) ** 2
    branches = [math.sqrt(squares[key]) for key in sorted(squares)]
    return {"losses": [float(one) for one in np.asarray(losses)], "grad_norm_by_branch": branches}


def to_record(cell: DepthCell, result: dict[str, Any]) -> dict[str, Any]:
    """One cell as ``--json`` prints it: settings, then what was measured."""
    recipe = cell.recipe
    settings = {
        "scheme": recipe.resolved_scheme.name,
        "rule": recipe.resolved_scheme.rule,
        "encoder_layers": 0,
        **{name: getattr(recipe, name) for name in ("decoder_layers", "seed", "lr", "width", "steps", "batch_size")},
        **{name: getattr(recipe, name) for name in ("length", "warmup_steps", "clip")},
    }
    return settings | result


def build_grid(base: Recipe, schemes: list[str], *, layers: list[int], lrs: list[float], seeds: int) -> DepthExperiment:
    """Every scheme at every depth, rate and seed; seed by seed, so that what is stopped early compares all."""
    return DepthExperiment(
        tuple(
            DepthCell(dataclasses.replace(base, scheme=scheme, decoder_layers=depth, lr=lr, seed=seed))
            for seed in range(seeds)
            for depth in dict.fromkeys(layers)
            for lr in dict.fromkeys(lrs)
            for scheme in dict.fromkeys(schemes)
        )
    )
