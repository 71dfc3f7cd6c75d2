"""Tasks on a Ray cluster: each is tried again where its worker dies, and goes on from what its folder holds.

Every machine of the cluster needs kilolayer and the folder of results under the same path.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from kilolayer.lab.pool import STOP_WITHIN_S, OnProgress, Task, stopped_like_ctrl_c

MISSING_EXTRA = "a Ray cluster needs the package ray: pip install 'kilolayer[ray]'"
MOST_TRIES = 5
"""Deaths of the worker that a task survives: lack of memory kills again and again."""

REPORT_EVERY_S = 1.0


def in_ray(tasks: Sequence[Task], load_data: Callable[[], Any], *, report: OnProgress) -> bool:
    """Every task on the Ray cluster that this process is connected to, or that ``ray.init`` finds; false after Ctrl-C.

    Args:
        tasks: the work; one processor each.
        load_data: called for each task where it runs.
        report: called about once a second.

    Raises:
        ImportError: Ray is not installed.
        OSError: no cluster is there, or a task's worker died again and again.
    """
    try:
        import ray
    except ImportError as error:
        raise ImportError(MISSING_EXTRA) from error
    if not ray.is_initialized():
        _connect(ray)
    work = ray.remote(num_cpus=1, max_retries=MOST_TRIES, retry_exceptions=False)(_work)
    counter: Any = ray.remote(num_cpus=0, max_restarts=-1)(StepCounter).remote(len(tasks))
    here = os.getcwd()
    waiting = {work.remote(task, index, load_data, counter, here): index for index, task in enumerate(tasks)}
    finished: set[int] = set()
    try:
        with stopped_like_ctrl_c():
            while waiting:
                ready, _ = ray.wait(list(waiting), num_returns=1, timeout=REPORT_EVERY_S)
                for one in ready:
                    ray.get(one)
                    finished.add(waiting.pop(one))
                report(_steps(ray, counter, tasks, finished), len(finished))
    except KeyboardInterrupt:
        return False
    except ray.exceptions.WorkerCrashedError as error:
        raise OSError(
            f"a run's worker was killed {MOST_TRIES + 1} times, perhaps for lack of memory; the same command continues"
        ) from error
    except ray.exceptions.RayTaskError as error:
        raise error.as_instanceof_cause() from None
    finally:
        _cancel(ray, list(waiting))
        ray.kill(counter)
    return True


def _connect(ray: Any) -> None:
    try:
        ray.init(address="auto", log_to_driver=False)
    except (ConnectionError, ValueError) as error:
        raise OSError(f"no Ray cluster was found ({error}); start one with: ray start --head") from error


def _steps(ray: Any, counter: Any, tasks: Sequence[Task], finished: set[int]) -> int:
    """Steps done; of running tasks as far as the counter, which may die with its machine, knows."""
    counted = [0] * len(tasks)
    with contextlib.suppress(ray.exceptions.RayError):
        counted = ray.get(counter.counts.remote(), timeout=REPORT_EVERY_S)
    return sum(task.num_steps if index in finished else counted[index] for index, task in enumerate(tasks))


def _cancel(ray: Any, waiting: list[Any]) -> None:
    """Let every task that runs end its step, so that it can save what it has."""
    for one in waiting:
        ray.cancel(one, force=False)
    if waiting:
        with contextlib.suppress(KeyboardInterrupt):
            ray.wait(waiting, num_returns=len(waiting), timeout=STOP_WITHIN_S)


class StepCounter:
    """Steps of every task, in a process of the cluster."""

    def __init__(self, num_tasks: int):
        self._counts = [0] * num_tasks

    def put(self, index: int, step: int) -> None:
        """A task is so far."""
        self._counts[index] = step

    def counts(self) -> list[int]:
        """Of all tasks."""
        return self._counts


def _work(task: Task, index: int, load_data: Callable[[], Any], counter: Any, folder: str) -> None:
    torch.set_num_threads(1)
    if os.path.isdir(folder):
        os.chdir(folder)  # names of files mean there what they mean where the command was typed
    told = time.monotonic()

    def on_step(step: int) -> None:
        nonlocal told
        if time.monotonic() - told > REPORT_EVERY_S:
            told = time.monotonic()
            counter.put.remote(index, step)

    task.call(*task.arguments, load_data(), on_step)
