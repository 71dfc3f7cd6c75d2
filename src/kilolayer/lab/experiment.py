"""Running many runs into one folder: in parallel, resumable, readable after Ctrl-C; for any lab.

A folder holds ``experiment.json`` (what every run shares), one folder per finished run, and one hidden folder per
run that is under way, renamed when it is complete: what has a name can be read. A lab says what a run is by an
:class:`Experiment`; what it leaves in the hidden folder of a run that was stopped is there when the run goes on.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from kilolayer.lab.pool import OnProgress, Task, in_parallel, in_turn
from kilolayer.lab.ray_pool import in_ray
from kilolayer.schemes.suggest import unknown_name
from kilolayer.train.folder_lock import lock_folder

FORMAT = 1
RESULT = "result.json"
EXPERIMENT = "experiment.json"

HERE = "here"
PLACES = (HERE, "ray")

OnStep = Callable[[int], None]
"""Called with the steps a run has done; raises ``KeyboardInterrupt`` when it is time to stop."""


class Run(Protocol):
    """One run: hashable, picklable, all that decides its numbers besides the data."""

    @property
    def folder_name(self) -> str:
        """Tells the runs of one experiment apart."""

    @property
    def num_steps(self) -> int:
        """Steps of work, for the progress bar."""


RunT = TypeVar("RunT", bound=Run)


class Experiment(Protocol[RunT]):
    """A set of runs that share data and settings; picklable."""

    @property
    def runs(self) -> tuple[RunT, ...]:
        """Every run."""

    @property
    def continues(self) -> bool:
        """Whether a run that was stopped goes on from what its folder holds, rather than anew."""

    def shared(self) -> dict[str, Any]:
        """The settings that decide whether two experiments may share a folder, ready for JSON."""

    def load_data(self) -> Any:
        """What every run reads."""

    def data_check(self, data: Any) -> str:
        """What tells two data sets apart, whatever path they were read from."""

    def carry_out(self, run: RunT, data: Any, folder: Path, on_step: OnStep) -> dict[str, Any]:
        """One run, files to ``folder``; its results, ready for JSON."""


def open_folder(experiment: Experiment[Any], folder: Path, data_check: str = "") -> None:
    """Make the folder, or check that what it holds is this experiment.

    Raises:
        ValueError: it is a file, holds something else, or another experiment; nothing is touched then.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--out {folder} is a file; name a folder")
    path = folder / EXPERIMENT
    shared = {"format": FORMAT} | experiment.shared() | {"data_check": data_check}
    if not path.exists() or not any(folder.glob(f"*/{RESULT}")):  # nothing finished here, so nothing is lost
        if folder.exists() and any(entry.name[0] != "." and entry != path for entry in folder.iterdir()):
            raise ValueError(f"--out {folder} holds other files and no experiment; name a new folder")
        if not (path.exists() and any(folder.glob(".*.part/*"))):
            _start_afresh(folder, path, shared)
        elif different := _differences(path, shared):  # it may be hours of work, and can be continued
            raise ValueError(f"--out {folder} holds an unfinished run of {different}; name a new folder")
        return
    if different := _differences(path, shared):
        raise ValueError(f"--out {folder} holds {different}; name a new folder")


def _start_afresh(folder: Path, path: Path, shared: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with lock_folder(folder, name="--out"):  # another process may be at its first run here
        for unfinished in folder.glob(".*.part"):
            shutil.rmtree(unfinished)
        path.write_text(json.dumps(shared, indent=1), encoding="utf-8")


def _differences(path: Path, shared: dict[str, Any]) -> str:
    """What the folder holds instead, empty where it is the same experiment."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        # Folders of before the check was kept have none; where there is one it decides, not the path.
        decided_by = "data_check" if found.get("data_check") else "data"
        kept = [key for key in shared if key not in ("data", "data_check") or key == decided_by]
        different = [key for key in kept if found.get(key) != shared[key]]
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{path} is damaged ({error}); name a new folder") from error
    if not different:
        return ""
    key = different[0]
    if key == "data_check":
        return f"runs on other data (from {found.get('data')})"
    return f"another experiment ({key} is {found.get(key)!r} there, {shared[key]!r} here)"


def finished_runs(experiment: Experiment[RunT], folder: Path) -> dict[RunT, dict[str, Any]]:
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


def unfinished_folder(run: Run, folder: Path) -> Path:
    """Where a run keeps its files until it is complete."""
    return folder / f".{run.folder_name}.part"


def run_experiment(
    experiment: Experiment[Any],
    folder: Path,
    *,
    jobs: int = 2,
    on: str = HERE,
    on_progress: OnProgress = lambda steps, runs: None,
) -> bool:
    """Carry out what the folder lacks.

    Args:
        experiment: the runs.
        folder: of the results.
        jobs: processes on this machine.
        on: ``"here"``, or ``"ray"`` for the Ray cluster at hand, which decides itself how many runs at a time.
        on_progress: called with finished steps and runs.

    Returns:
        whether every run finished; false after Ctrl-C, with all finished runs kept, and the unfinished ones too
        where the experiment continues them.

    Raises:
        ValueError: the folder holds something else or is in use, the data are bad, ``jobs`` < 1.
    """
    if jobs < 1:
        raise ValueError(f"jobs must be >= 1, got {jobs}")
    if on not in PLACES:
        raise unknown_name("--on", on, PLACES)
    data = experiment.load_data()
    open_folder(experiment, folder, experiment.data_check(data))
    with lock_folder(folder, name="--out"):
        done = finished_runs(experiment, folder)
        missing = [run for run in experiment.runs if run not in done]
        steps_done = sum(run.num_steps for run in done)

        def report(steps: int, runs: int) -> None:
            on_progress(steps_done + steps, len(done) + runs)

        report(0, 0)
        # A worker elsewhere has another working folder.
        tasks = [Task(_carry_out, (experiment, run, folder.absolute()), run.num_steps) for run in missing]
        if not tasks:
            return True
        if on == "ray":
            finished = in_ray(tasks, experiment.load_data, report=report)
        elif experiment.continues or (jobs > 1 and len(tasks) > 1):
            finished = in_parallel(tasks, experiment.load_data, jobs=jobs, waits=experiment.continues, report=report)
        else:
            finished = in_turn(tasks, data, report)
        if not experiment.continues:
            for run in missing:
                shutil.rmtree(unfinished_folder(run, folder), ignore_errors=True)
    return finished


def _carry_out(experiment: Experiment[Any], run: Run, folder: Path, data: Any, on_step: OnStep) -> None:
    """One run in its hidden folder, renamed when complete."""
    unfinished = unfinished_folder(run, folder)
    if not experiment.continues:
        shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(exist_ok=True)
    try:
        result = experiment.carry_out(run, data, unfinished, on_step)
    except BaseException:
        if not experiment.continues:
            shutil.rmtree(unfinished, ignore_errors=True)
        raise
    (unfinished / RESULT).write_text(json.dumps(result), encoding="utf-8")
    named = folder / run.folder_name
    shutil.rmtree(named, ignore_errors=True)  # of an earlier try, without a result
    os.replace(unfinished, named)
