"""An experiment that counts, slowly if asked to: what the runner does, without any network."""

import json
import os
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Counting:
    folder_name: str
    num_steps: int = 50
    pause_s: float = 0.0
    dies_at: int = -1


@dataclass(frozen=True)
class CountingExperiment:
    runs: tuple[Counting, ...]
    continues: bool = True

    def shared(self):
        return {"lab": "counting", "data": "none"}

    def load_data(self):
        return None

    def data_check(self, data):
        return ""

    def carry_out(self, run, data, folder, on_step):
        path = folder / "steps.json"
        start = json.loads(path.read_text()) if path.exists() else 0
        step = start
        try:
            for step in range(start + 1, run.num_steps + 1):
                time.sleep(run.pause_s)
                if step == run.dies_at:
                    os._exit(9)
                on_step(step)
        finally:
            path.write_text(json.dumps(step))
        return {"started_at": start, "steps": step}
