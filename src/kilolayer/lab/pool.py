"""Tasks in this process or in several, with a progress count and an end that loses nothing on Ctrl-C."""

from __future__ import annotations

import multiprocessing.connection
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

OnProgress = Callable[[int, int], None]
"""Called with finished steps and finished tasks."""

STOP_WITHIN_S = 120.0
"""Time a task gets to reach the end of its step when it is asked to stop."""


@dataclass(frozen=True)
class Task:
    """``call(*arguments, data, on_step)``, a picklable piece of work of ``num_steps`` steps."""

    call: Callable[..., None]
    arguments: tuple[Any, ...]
    num_steps: int


def in_turn(tasks: Sequence[Task], data: Any, report: OnProgress) -> bool:
    """Every task here, on one thread; false after Ctrl-C."""
    steps_before = 0
    try:
        with one_thread(), stopped_like_ctrl_c():
            for index, task in enumerate(tasks):

                def on_step(step: int, index: int = index, before: int = steps_before) -> None:
                    report(before + step, index)

                task.call(*task.arguments, data, on_step)
                steps_before += task.num_steps
                report(steps_before, index + 1)
    except KeyboardInterrupt:
        return False
    return True


def in_parallel(
    tasks: Sequence[Task], load_data: Callable[[], Any], *, jobs: int, waits: bool, report: OnProgress
) -> bool:
    """Every task in one of ``jobs`` processes, one thread each; false after Ctrl-C.

    Args:
        tasks: the work.
        load_data: called once in each process.
        jobs: how many processes.
        waits: on Ctrl-C let every task end its step, so that it can save what it has; a second one does not wait.
        report: called a few times a second.
    """
    context = multiprocessing.get_context("spawn")
    counters = context.Array("l", len(tasks) + 1, lock=False)  # the last one is 1 when it is time to stop
    workers = min(jobs, len(tasks))
    pool = ProcessPoolExecutor(workers, context, initializer=_start_worker, initargs=(load_data, counters))
    waiting: dict[Future[None], int] = {pool.submit(_work, task, index): index for index, task in enumerate(tasks)}
    try:
        with stopped_like_ctrl_c():
            while waiting:
                finished, _ = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
                for future in finished:
                    index = waiting.pop(future)
                    future.result()
                    counters[index] = tasks[index].num_steps
                report(sum(counters[:-1]), len(tasks) - len(waiting))
    except KeyboardInterrupt:
        return False
    except BrokenProcessPool as error:
        raise OSError(
            "a process of a run was killed, perhaps for lack of memory; try fewer --jobs, the same command continues"
        ) from error
    finally:
        if waits and waiting:
            counters[-1] = 1
            _wait_for_steps(waiting)
        _stop(pool)
    return True


def _wait_for_steps(waiting: dict[Future[None], int]) -> None:
    for future in waiting:
        future.cancel()
    try:
        wait(waiting, timeout=STOP_WITHIN_S)
    except KeyboardInterrupt:
        return


def _stop(pool: ProcessPoolExecutor) -> None:
    """End a pool and its workers at once."""
    workers = list((pool._processes or {}).values())  # shutdown forgets them
    pool.shutdown(wait=False, cancel_futures=True)
    for worker in workers:
        worker.terminate()
    for worker in workers:
        worker.join()


_worker: dict[str, Any] = {}


def _start_worker(load_data: Callable[[], Any], counters: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    torch.set_num_threads(1)
    _worker.update(data=load_data(), counters=counters, busy=False, left_behind=False)
    threading.Thread(target=_watch_parent, daemon=True).start()


def _watch_parent() -> None:
    """End this process when its parent was killed: at the end of the step it is at."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    multiprocessing.connection.wait([parent.sentinel])
    _worker["left_behind"] = True
    end = time.monotonic() + STOP_WITHIN_S
    while _worker["busy"] and time.monotonic() < end:
        time.sleep(0.1)
    os._exit(1)


def _work(task: Task, index: int) -> None:
    counters = _worker["counters"]

    def on_step(step: int) -> None:
        counters[index] = step
        if counters[-1] or _worker["left_behind"]:
            raise KeyboardInterrupt

    _worker["busy"] = True
    try:
        task.call(*task.arguments, _worker["data"], on_step)
    finally:
        _worker["busy"] = False


@contextmanager
def stopped_like_ctrl_c() -> Iterator[None]:
    """SIGTERM ends the work as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def one_thread() -> Iterator[None]:
    """Runs are compared with each other, so each gets the same: one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
