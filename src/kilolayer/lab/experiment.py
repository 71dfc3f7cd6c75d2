"""Running many runs into one folder: in parallel, resumable, readable after Ctrl-C.

A folder holds ``experiment.json`` (what every run shares) and one folder per finished run. A run is written
under a temporary name and renamed when it is complete, so what has a name can be read.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kilolayer.lab.data import Dataset, load_data
from kilolayer.lab.wirings import WiringRun, run_wiring

FORMAT = 1
RESULT = "result.json"
EXPERIMENT = "experiment.json"

OnProgress = Callable[[int, int], None]
"""Called with finished steps and finished runs."""


@dataclass(frozen=True)
class Experiment:
    """A set of runs over one data set that share all settings but wiring, learning rate and seed."""

    data: str
    runs: tuple[WiringRun, ...]
    every: int = 10

    def shared(self) -> dict[str, Any]:
        """The settings that decide whether two experiments may share a folder."""
        run = self.runs[0]
        return {
            "lab": "wirings",
            "format": FORMAT,
            "data": self.data,
            "blocks": run.num_blocks,
            "width": run.width,
            "norm": run.norm,
            "steps": run.num_steps,
            "batch_size": run.batch_size,
            "warmup_steps": run.warmup_steps,
            "backend": run.backend,
        }


def fingerprint(data: Dataset) -> str:
    """What tells two data sets apart, whatever path they were read from."""
    checks = [
        zlib.crc32(np.ascontiguousarray(part).data) for part in (data.x_train, data.y_train, data.x_test, data.y_test)
    ]
    return "-".join(f"{check:08x}" for check in checks)


def open_folder(experiment: Experiment, folder: Path, data_check: str = "") -> None:
    """Make the folder, or check that what it holds is this experiment.

    Raises:
        ValueError: it is a file, holds something else, or another experiment; nothing is touched then.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--out {folder} is a file; name a folder")
    path = folder / EXPERIMENT
    shared = experiment.shared() | {"data_check": data_check}
    if not path.exists() or not any(folder.glob(f"*/{RESULT}")):  # nothing finished here, so nothing is lost
        if folder.exists() and any(entry.name[0] != "." and entry != path for entry in folder.iterdir()):
            raise ValueError(f"--out {folder} holds other files and no experiment; name a new folder")
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(shared, indent=1), encoding="utf-8")
        return
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        # Folders of before the check was kept have none; where there is one it decides, not the path.
        decided_by = "data_check" if found.get("data_check") else "data"
        kept = [key for key in shared if key not in ("data", "data_check") or key == decided_by]
        different = [key for key in kept if found.get(key) != shared[key]]
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{path} is damaged ({error}); name a new folder") from error
    if different:
        key = different[0]
        if key == "data_check":
            raise ValueError(f"--out {folder} holds runs on other data (from {found.get('data')}); name a new folder")
        raise ValueError(
            f"--out {folder} holds another experiment ({key} is {found.get(key)!r} there, {shared[key]!r} here); "
            "name a new folder"
        )


def finished_runs(experiment: Experiment, folder: Path) -> dict[WiringRun, dict[str, Any]]:
    """The results already in the folder, by run."""
    found = {}
    for run in experiment.runs:
        path = folder / run.folder_name / RESULT
        if path.is_file():
            try:
                found[run] = json.loads(path.read_text(encoding="utf-8"))
            except ValueError as error:
                raise ValueError(f"{path} is damaged ({error}); delete {path.parent} to run it again") from error
    return found


def run_experiment(
    experiment: Experiment, folder: Path, *, jobs: int = 2, on_progress: OnProgress = lambda steps, runs: None
) -> bool:
    """Carry out what the folder lacks.

    Returns:
        whether every run finished; false after Ctrl-C, with all finished runs kept.

    Raises:
        ValueError: the folder holds something else, the data are bad, ``jobs`` < 1.
    """
    if jobs < 1:
        raise ValueError(f"jobs must be >= 1, got {jobs}")
    data = load_data(experiment.data)
    open_folder(experiment, folder, fingerprint(data))
    done = finished_runs(experiment, folder)
    missing = [run for run in experiment.runs if run not in done]
    steps_done = sum(run.num_steps for run in done)
    if not missing:
        on_progress(steps_done, len(done))
        return True
    if jobs == 1 or len(missing) == 1:
        return _run_here(experiment, missing, folder, data, lambda s, r: on_progress(steps_done + s, len(done) + r))
    return _run_in_pool(experiment, missing, folder, jobs, lambda s, r: on_progress(steps_done + s, len(done) + r))


def _run_here(
    experiment: Experiment, runs: Sequence[WiringRun], folder: Path, data: Dataset, on_progress: OnProgress
) -> bool:
    steps_before = 0
    try:
        with _one_thread():
            for index, run in enumerate(runs):
                report = partial(_report, on_progress, steps_before, index)
                _carry_out(run, data, folder, experiment.every, report)
                steps_before += run.num_steps
                on_progress(steps_before, index + 1)
    except KeyboardInterrupt:
        return False
    return True


def _report(on_progress: OnProgress, steps_before: int, index: int, step: int) -> None:
    on_progress(steps_before + step, index)


def _run_in_pool(
    experiment: Experiment, runs: Sequence[WiringRun], folder: Path, jobs: int, on_progress: OnProgress
) -> bool:
    context = multiprocessing.get_context("spawn")
    counters = context.Array("l", len(runs), lock=False)
    pool = ProcessPoolExecutor(
        min(jobs, len(runs)), context, initializer=_start_worker, initargs=(experiment.data, counters)
    )
    waiting: dict[Future[None], int] = {
        pool.submit(_work, run, folder, experiment.every, index): index for index, run in enumerate(runs)
    }
    try:
        while waiting:
            finished, _ = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
            for future in finished:
                counters[waiting.pop(future)] = runs[0].num_steps
                future.result()
            on_progress(sum(counters), len(runs) - len(waiting))
    except KeyboardInterrupt:
        return False
    finally:
        _stop(pool, folder)
    return True


def _stop(pool: ProcessPoolExecutor, folder: Path) -> None:
    """End a pool, its workers at once, and remove what they were writing."""
    workers = list((pool._processes or {}).values())  # shutdown forgets them
    pool.shutdown(wait=False, cancel_futures=True)
    for worker in workers:
        worker.terminate()
    for worker in workers:
        worker.join()
        for unfinished in folder.glob(f".{worker.pid}-*"):
            shutil.rmtree(unfinished, ignore_errors=True)


_worker: dict[str, Any] = {}


def _start_worker(data: str, counters: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    torch.set_num_threads(1)
    _worker["data"], _worker["counters"] = load_data(data), counters


def _work(run: WiringRun, folder: Path, every: int, index: int) -> None:
    def on_step(step: int) -> None:
        _worker["counters"][index] = step

    _carry_out(run, _worker["data"], folder, every, on_step)


def _carry_out(run: WiringRun, data: Dataset, folder: Path, every: int, on_step: Callable[[int], None]) -> None:
    """One run under a temporary name, renamed when complete."""
    temporary = Path(tempfile.mkdtemp(prefix=f".{os.getpid()}-{run.folder_name}-", dir=folder))
    try:
        result = run_wiring(run, data, temporary, every=every, on_step=on_step)
        (temporary / RESULT).write_text(json.dumps(result), encoding="utf-8")
        os.chmod(temporary, 0o755)
        if not (folder / run.folder_name / RESULT).is_file():  # another process may have been quicker
            os.replace(temporary, folder / run.folder_name)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Runs are compared with each other, so each gets the same: one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
