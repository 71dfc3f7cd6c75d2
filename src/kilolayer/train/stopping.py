"""Ctrl-C and SIGTERM end a run at the end of its step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class StopFlag:
    """True once somebody asked the run to stop."""

    def __init__(self) -> None:
        self.is_set = False

    def __bool__(self) -> bool:
        return self.is_set


@contextmanager
def stopping_between_steps() -> Iterator[StopFlag]:
    """A flag that Ctrl-C or SIGTERM sets; a second one ends the run where it is.

    Outside of the main thread, where signals cannot be caught, nothing sets it.
    """
    flag = StopFlag()
    if threading.current_thread() is not threading.main_thread():
        yield flag
        return

    def stop(number: int, frame: Any) -> None:
        if flag:
            raise KeyboardInterrupt
        flag.is_set = True

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield flag
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
