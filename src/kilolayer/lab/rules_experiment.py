"""The runs of ``kilolayer lab rules``: one language model of characters under many schemes, from the same seeds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kilolayer.lab.character_model import train_characters
from kilolayer.lab.characters import Characters, load_characters
from kilolayer.lab.depth_run import DepthRun
from kilolayer.lab.experiment import OnStep
from kilolayer.schemes.registry import RULE_NAMES

DEFAULT_SCHEMES: tuple[str, ...] = ("post-ln", "pre-ln", *(f"deepnorm:{rule}" for rule in RULE_NAMES))
"""The two classics and every rule of DeepNorm."""


@dataclass(frozen=True)
class RulesExperiment:
    """Runs over one text that share all settings but scheme and seed."""

    data: str
    runs: tuple[DepthRun, ...]

    @property
    def continues(self) -> bool:
        """At a few hundred layers a run takes an hour; it goes on from its checkpoint."""
        return True

    def shared(self) -> dict[str, Any]:
        """The settings that decide whether two experiments may share a folder."""
        run = self.runs[0]
        return {
            "lab": "rules",
            "data": self.data,
            "layers": run.decoder_layers,
            "width": run.width,
            "steps": run.num_steps,
            "batch_size": run.batch_size,
            "length": run.length,
            "lr": run.lr,
            "warmup_steps": run.warmup_steps,
            "optimizer": run.optimizer,
            "init": run.init,
        }

    def load_data(self) -> Characters:
        """The text, checked to be long enough."""
        text = load_characters(self.data)
        text.check_length(self.runs[0].length)
        return text

    def data_check(self, data: Characters) -> str:
        """The text's checksum."""
        return data.checksum

    def carry_out(self, run: DepthRun, data: Characters, folder: Path, on_step: OnStep) -> dict[str, Any]:
        """One run."""
        return train_characters(run, data, folder, on_step)
