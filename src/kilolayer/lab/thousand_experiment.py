"""What the runs of ``kilolayer lab thousand`` share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kilolayer.lab.depth_run import DepthRun
from kilolayer.lab.experiment import OnStep
from kilolayer.lab.thousand import run_thousand
from kilolayer.lab.translation_data import cached_data, check_split, load_split
from kilolayer.train.pairs import PairSplit


@dataclass(frozen=True)
class ThousandExperiment:
    """Runs over one set of sentence pairs that differ in scheme, depth, learning rate and seed.

    Attributes:
        data: ``"number-words"`` or a file of pairs.
        runs: every run.
        vocab_size: tokens of the vocabulary, at most.
        depth_samples: layers of each stack that are skipped in turn after training.
    """

    data: str
    runs: tuple[DepthRun, ...]
    vocab_size: int
    depth_samples: int

    @property
    def continues(self) -> bool:
        """A run of a thousand layers takes an hour; one that was stopped goes on."""
        return True

    def shared(self) -> dict[str, Any]:
        """The settings that decide whether two experiments may share a folder."""
        run = self.runs[0]
        return {
            "lab": "thousand",
            "data": self.data,
            "vocab_size": self.vocab_size,
            "length": run.length,
            "width": run.width,
            "steps": run.num_steps,
            "batch_size": run.batch_size,
            "warmup_steps": run.warmup_steps,
            "optimizer": run.optimizer,
            "depth_samples": self.depth_samples,
        }

    def load_data(self) -> PairSplit:
        """Sentence pairs, split."""
        return load_split(self.data, batch_size=self.runs[0].batch_size)

    def data_check(self, data: PairSplit) -> str:
        """Checksums of the parts."""
        return check_split(data)

    def carry_out(self, run: DepthRun, data: PairSplit, folder: Path, on_step: OnStep) -> dict[str, Any]:
        """One run; what it keeps while it is under way is in ``folder``."""
        encoded = cached_data(data, folder.parent, vocab_size=self.vocab_size, length=run.length)
        return run_thousand(run, encoded, folder, depth_samples=self.depth_samples, on_step=on_step)
