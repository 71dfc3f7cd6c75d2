"""Small finished runs of wirings, as the lab leaves them on disk."""

from __future__ import annotations

import json
from pathlib import Path

from kilolayer.lab.data import load_data
from kilolayer.lab.experiment import RESULT
from kilolayer.lab.wirings import WiringRun, run_wiring
from kilolayer.lab.wirings_results import RunResult

DIGITS = load_data("digits")


def finished(folder: Path, wiring: str, *, seed: int = 0, lr: float = 0.05, **settings: object) -> RunResult:
    """Carry out a run of 3 blocks of 8 units over 4 steps, or as ``settings`` say, into the folder."""
    sizes = {"num_blocks": 3, "width": 8, "num_steps": 4, "batch_size": 16} | settings
    run = WiringRun(wiring, seed, lr, **sizes)
    path = folder / run.folder_name
    path.mkdir()
    result = run_wiring(run, DIGITS, path)
    (path / RESULT).write_text(json.dumps(result), encoding="utf-8")
    return RunResult(run, path, DIGITS)
