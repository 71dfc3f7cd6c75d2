"""What the runs of ``kilolayer lab wirings`` share."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kilolayer.lab.data import Dataset, load_data
from kilolayer.lab.experiment import OnStep
from kilolayer.lab.wirings import WiringRun, check_batch_size, run_wiring


@dataclass(frozen=True)
class WiringsExperiment:
    """A set of runs over one data set that share all settings but wiring, learning rate and seed."""

    data: str
    runs: tuple[WiringRun, ...]
    every: int = 10

    @property
    def continues(self) -> bool:
        """A run takes seconds; one that was stopped starts anew."""
        return False

    def shared(self) -> dict[str, Any]:
        """The settings that decide whether two experiments may share a folder."""
        run = self.runs[0]
        return {
            "lab": "wirings",
            "data": self.data,
            "blocks": run.num_blocks,
            "width": run.width,
            "norm": run.norm,
            "steps": run.num_steps,
            "batch_size": run.batch_size,
            "warmup_steps": run.warmup_steps,
            "backend": run.backend,
        }

    def load_data(self) -> Dataset:
        """Samples and labels, enough for a batch."""
        data = load_data(self.data)
        check_batch_size(self.runs[0], data)
        return data

    def data_check(self, data: Dataset) -> str:
        """Checksums of the samples and labels as they are used."""
        parts = (data.x_train, data.y_train, data.x_test, data.y_test)
        return "-".join(f"{zlib.crc32(np.ascontiguousarray(part).data):08x}" for part in parts)

    def carry_out(self, run: WiringRun, data: Dataset, folder: Path, on_step: OnStep) -> dict[str, Any]:
        """One run, its recordings in ``folder``."""
        return run_wiring(run, data, folder, every=self.every, on_step=on_step)
