"""One run of somebody else's trainer under the monitor: what its callbacks share."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from kilolayer.integrations.loggers import MonitorLogger, log_to
from kilolayer.monitor import Monitor
from kilolayer.monitor.schedule import Schedule
from kilolayer.monitor.sites import Selection
from kilolayer.recording import Recording


@dataclass(frozen=True)
class WatchOptions:
    """What a callback was given, for each run's monitor and its logger; see :class:`kilolayer.Monitor`."""

    every: int | Schedule = 10
    sites: Selection | None = None
    stats: str = "full"
    out: str | Path | None = None
    logger: MonitorLogger | None = None
    log_sites: str | Sequence[str] = ()


class WatchedRun:
    """A monitor from a trainer's first step to its last, whatever ends it.

    Args:
        options: what the callback was given.
        model: the model that trains.
        optimizer: one or several, wrapped or not.
        scaler: the gradient scaler, if there is one.
        step: optimizer steps done before, in a resumed run.
    """

    def __init__(self, options: WatchOptions, model: nn.Module, *, optimizer: Any, scaler: Any = None, step: int = 0):
        self.monitor = Monitor(
            model,
            optimizer,
            every=options.every,
            sites=options.sites,
            stats=options.stats,
            scaler=scaler,
            out=free_folder(options.out, step),
        )
        if options.logger is not None:
            log_to(self.monitor, options.logger, sites=options.log_sites)
        self.monitor.start(step=step)
        # A trainer that fails calls no callback; the recording is finished when the interpreter is.
        atexit.register(self.close, failed=True)

    def log(self, **scalars: Any) -> None:
        """Record numbers of the step in progress."""
        if self.monitor.recording is None:
            self.monitor.log(**scalars)

    def close(self, *, failed: bool = False) -> Recording:
        """Finish the recording; closing twice is closing once."""
        atexit.unregister(self.close)
        if self.monitor.recording is not None:
            return self.monitor.recording
        kind = RuntimeError if failed else None
        self.monitor.__exit__(kind, None, None)
        assert self.monitor.recording is not None
        return self.monitor.recording

    def report(self) -> None:
        """One line on standard error: what was recorded."""
        recording = self.monitor.recording
        if recording is not None and len(recording):
            print(summary_line(recording, self.monitor.writer.folder), file=sys.stderr)


def summary_line(recording: Recording, folder: str | Path | None) -> str:
    """What was recorded, and where."""
    where = "" if folder is None else f" in {folder}"
    num_steps = len(recording.steps())
    steps = "1 step" if num_steps == 1 else f"{num_steps} steps"
    return f"kilolayer: recorded {steps} of {len(recording.sites)} sites{where}"


def free_folder(out: str | Path | None, step: int) -> Path | None:
    """Where a run writes: ``out``, or beside it as ``out-from-STEP`` where a resumed run finds the first part there."""
    if out is None:
        return None
    folder = Path(out)
    if step == 0 or not _is_taken(folder):
        return folder
    part, number = folder.with_name(f"{folder.name}-from-{step}"), 2
    while _is_taken(part):
        part, number = folder.with_name(f"{folder.name}-from-{step}-{number}"), number + 1
    return part


def _is_taken(folder: Path) -> bool:
    return folder.exists() and any(folder.iterdir())
