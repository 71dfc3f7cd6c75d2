"""Run by test_lab_ray.py: a grid on a local cluster, one of whose workers is killed; then two real cells."""

import contextlib
import json
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import ray

from kilolayer.lab.depth_cells import build_grid
from kilolayer.lab.experiment import run_experiment
from kilolayer.train import language

NUM_STEPS, KILLED_AT = 20, 5


@dataclass(frozen=True)
class Counting:
    """A run that counts its steps in a file, and says in another who worked on it."""

    folder_name: str
    num_steps: int = NUM_STEPS


@dataclass(frozen=True)
class CountingExperiment:
    """Runs of that kind."""

    runs: tuple[Counting, ...]
    notes: Path
    continues = True

    def shared(self):
        return {"lab": "counting"}

    def load_data(self):
        return None

    def data_check(self, data):
        return ""

    def carry_out(self, run, data, folder, on_step):
        saved = folder / "step"
        first = int(saved.read_text()) if saved.exists() else 0
        with (self.notes / run.folder_name).open("a") as notes:
            notes.write(f"{os.getpid()} {first}\n")
        for step in range(first, NUM_STEPS):
            time.sleep(0.05)
            saved.write_text(str(step + 1))
            on_step(step + 1)
        return {"steps": NUM_STEPS}


def kill_one(folder: Path, notes: Path) -> None:
    """Kill the worker of the run that gets to a step first."""
    while True:
        for saved in folder.glob(".*.part/step"):
            with contextlib.suppress(OSError, ValueError):
                if int(saved.read_text()) >= KILLED_AT:
                    name = saved.parent.name.removeprefix(".").removesuffix(".part")
                    os.kill(int((notes / name).read_text().split()[0]), signal.SIGKILL)
                    return
        time.sleep(0.01)


def main() -> None:
    """Print what came of it."""
    root = Path(sys.argv[1])
    notes = root / "notes"
    notes.mkdir()
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=80 * 2**20)
    counting = CountingExperiment(tuple(Counting(f"run-{number}") for number in range(4)), notes)
    threading.Thread(target=kill_one, args=(root / "counting", notes), daemon=True).start()
    finished = run_experiment(counting, root / "counting", on="ray")
    small = {"width": 16, "head_width": 8, "length": 8, "batch_size": 2, "warmup_steps": 0, "steps": 6}
    base = language(data="python-library", eval_every=6, save_every=3, **small)
    grid = build_grid(base, ["deepnorm", "pre-ln"], layers=[2], lrs=[1e-3], seeds=1)
    run_experiment(grid, root / "ray", on="ray")
    ray.shutdown()
    run_experiment(grid, root / "here", jobs=1)
    print(json.dumps({"finished": finished}))


if __name__ == "__main__":
    main()
