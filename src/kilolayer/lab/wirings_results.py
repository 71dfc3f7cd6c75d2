"""What came out of an experiment with wirings: JSON records, tables' rows and views for the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from kilolayer.diagnosis import Diagnosis, diagnose
from kilolayer.lab.experiment import RESULT, Experiment
from kilolayer.lab.wirings import WiringRun
from kilolayer.recording import Recording, Site

FORMAT = 1


class RunResult:
    """One finished run: its settings, numbers, recordings and verdict."""

    def __init__(self, run: WiringRun, folder: Path):
        self.run = run
        self.folder = folder
        self.result: dict[str, Any] = json.loads((folder / RESULT).read_text(encoding="utf-8"))
        self.init = Recording.load(folder / "init") if (folder / "init").is_dir() else None
        self.training = Recording.load(folder / "training") if (folder / "training").is_dir() else None
        self.diagnosis = diagnose(self.training) if self.training is not None else Diagnosis(None, (), {})

    def activation_std(self) -> np.ndarray:
        """Std at each block at step 0, ``(num_blocks,)``."""
        assert self.init is not None
        return self.init.curve("activation", "std", self.init.stream())

    def grad_norm(self) -> np.ndarray:
        """Norm of the gradient of each block's first matrix at step 0, ``(num_blocks,)``."""
        assert self.init is not None
        return self.init.curve("param_grad", "l2_norm", first_weights(self.init))


def first_weights(recording: Recording) -> list[Site]:
    """The first weight matrix of each block."""
    first: dict[int, Site] = {}
    for site in recording.weights():
        assert site.block_index is not None
        first.setdefault(site.block_index, site)
    return list(first.values())


def load_results(experiment: Experiment, folder: Path) -> list[RunResult]:
    """Every finished run of an experiment, in its order."""
    paths = [(run, folder / run.folder_name) for run in experiment.runs]
    return [RunResult(run, path) for run, path in paths if (path / RESULT).is_file()]


def rows_at(num_blocks: int) -> list[int]:
    """The blocks a table shows, 0-based: 1, 8, 16, 32 and the last."""
    return [index - 1 for index in (1, 8, 16, 32) if index < num_blocks] + [num_blocks - 1]
