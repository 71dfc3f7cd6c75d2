"""A run's recording, in segments that end where checkpoints are: what a run goes back on leaves no rows."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa

from kilolayer.monitor import Monitor
from kilolayer.recording import Recording
from kilolayer.train.run_folder import RECORDINGS
from kilolayer.train.stepper import Stepper

RECORDING = "recording"


class RecordedSegments:
    """The monitor of a run, closed and begun again at every checkpoint.

    Args:
        folder: of the run.
        every: steps between samples.
        writes: whether this process writes files.
    """

    def __init__(self, folder: Path, *, every: int, writes: bool):
        self.root, self.every, self.writes = folder / RECORDINGS, every, writes
        self.start_step = 0
        self.monitor: Monitor | None = None

    def begin(self, stepper: Stepper, step: int) -> None:
        """Watch from this step on; segments from here on are of steps that were not kept."""
        self.abandon()
        if self.writes:
            for path in segment_folders(self.root):
                if _first_step(path) >= step:
                    shutil.rmtree(path)
        monitor = Monitor(
            stepper.model,
            stepper.inner_optimizer,
            every=self.every,
            sites=stepper.structure,
            stats="core",
            scaler=stepper.accelerator.scaler,
        )
        self.start_step = step
        self.monitor = monitor.start(step=step)

    def log(self, **scalars: float) -> None:
        """Numbers of the step in progress."""
        if self.monitor is not None:
            self.monitor.log(**scalars)

    def end_skipped_step(self) -> None:
        """End a step whose update was not taken."""
        if self.monitor is not None:
            self.monitor.end_step()

    def end(self, step: int) -> None:
        """Write what was watched since :meth:`begin`, up to this step."""
        if self.monitor is None:
            return
        recording = self.monitor.close()
        self.monitor = None
        if self.writes and step > self.start_step:
            named = self.root / f"{self.start_step:08d}-{step:08d}"
            hidden = self.root / f".{named.name}.{os.getpid()}"
            shutil.rmtree(hidden, ignore_errors=True)
            recording.save(hidden)
            shutil.rmtree(named, ignore_errors=True)
            os.rename(hidden, named)

    def abandon(self) -> None:
        """Stop watching and forget the segment."""
        if self.monitor is not None:
            self.monitor.close()
            self.monitor = None


def segment_folders(root: Path) -> list[Path]:
    """The segments that are there in full, in order."""
    return sorted(path for path in root.glob("[0-9]*-*") if path.is_dir())


def load_recording(folder: str | Path) -> Recording:
    """The recording of a run of the training engine, finished or under way.

    Raises:
        FileNotFoundError: nothing was recorded yet, or the monitor was off.

    Examples:
        >>> import tempfile
        >>> from kilolayer.train import language, train
        >>> recipe = language(data="python-library", decoder_layers=1, width=16, steps=2)  # doctest: +SKIP
        >>> recording = load_recording(train(recipe, tempfile.mkdtemp()).folder)  # doctest: +SKIP
    """
    folder = Path(folder)
    if (folder / RECORDING).is_dir():
        return Recording.load(folder / RECORDING)
    parts = [Recording.load(path) for path in segment_folders(folder / RECORDINGS)]
    if not parts:
        raise FileNotFoundError(f"{folder} holds no recording: nothing was saved yet, or monitor_every=0")
    facts: dict[str, Any] = parts[0].facts
    return Recording(pa.concat_tables([part.rows for part in parts]), parts[-1].sites, facts)


def join_segments(folder: Path) -> Recording | None:
    """One recording of all segments, written beside them in place of them; ``None`` where nothing was recorded."""
    if not segment_folders(folder / RECORDINGS):
        return None
    shutil.rmtree(folder / RECORDING, ignore_errors=True)
    recording = load_recording(folder)
    hidden = folder / f".{RECORDING}.{os.getpid()}"
    shutil.rmtree(hidden, ignore_errors=True)
    recording.save(hidden)
    os.rename(hidden, folder / RECORDING)
    return recording


def _first_step(segment: Path) -> int:
    return int(segment.name.partition("-")[0])
