"""What a step leaves, on its way to the recording: of this process alone, or merged with the others'."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from typing import NamedTuple

from torch import Tensor

from kilolayer.monitor.guard import Guard
from kilolayer.monitor.merging import Entry, Merge
from kilolayer.monitor.passes import Pass
from kilolayer.monitor.rows import Key, RowQueue
from kilolayer.monitor.statistics import Value
from kilolayer.monitor.taps import TapSet
from kilolayer.monitor.team import Team
from kilolayer.recording import Recording, RecordingWriter, Site
from kilolayer.recording.schema import SCHEMA

SAVE_INTERVAL_S = 30.0
"""Time after which a sampled step writes what was gathered, so that a killed process loses little."""

ALONE = (
    "torch.distributed runs several processes, but not all of them watch this model with the same sites, statistics "
    "and steps; the recording holds this process's share alone. Build the monitor in every process, with the same "
    "arguments"
)


class PassReading(NamedTuple):
    """The pass that counts for a sampled step, and what its loss was multiplied by."""

    taps: TapSet
    found: Pass
    loss_scale: float

    def put(self, rows: RowQueue, step: int) -> None:
        """Report it as this process's own."""
        activations, gradients = self.taps.rows(self.found)
        rows.put_each(step, activations)
        rows.put_each(step, gradients, factor=1 / self.loss_scale)

    def entries(self, num_processes: int) -> dict[Key, Entry]:
        """This process's share of it.

        DDP and FSDP average gradients: the loss they descend is the mean of the processes' losses.
        """
        return self.taps.entries(self.found, grad_factor=1 / (self.loss_scale * num_processes))


class StepOutput:
    """Takes what steps leave and writes the recording.

    Args:
        writer: of the recording; in the first process it may have a folder.
        guard: takes errors.
        is_first_process: whether this process writes.
        sites: the site table as it is.
    """

    def __init__(
        self,
        writer: RecordingWriter,
        guard: Guard,
        *,
        is_first_process: bool,
        sites: Callable[[], list[Site]],
    ):
        self.writer = writer
        self.guard = guard
        self.rows = RowQueue(writer)
        self.merge: Merge | None = None
        self.is_first_process = is_first_process
        self._sites = sites
        self._scalars: dict[str, float | Tensor] = {}
        self._saved_at = time.monotonic()

    def join(self, team: Team) -> None:
        """From now on merge with the other processes."""
        self.merge = Merge(team, self.rows)

    @property
    def is_needed(self) -> bool:
        """Whether what this process measures goes anywhere."""
        return self.is_first_process or self.merge is not None

    def log(self, scalars: Mapping[str, float | Tensor]) -> None:
        """Keep numbers of the step in progress; the last value of a name counts."""
        self._scalars |= scalars

    def log_if_new(self, scalars: Mapping[str, float | Tensor]) -> None:
        """Keep numbers of the step in progress that nobody logged."""
        self._scalars = {**scalars, **self._scalars}

    def put(self, step: int, reading: PassReading | None, *, is_sampled: bool) -> None:
        """A step is over; ``reading`` is the pass that was read, if there was one."""
        if self.merge is not None:
            self.merge.log(step, self._take_scalars())
            if not is_sampled and not self.merge.is_due():
                return
            if self._exchange(self.merge, step, reading):
                self._move_and_save()
                return
        if not self.is_first_process:
            return
        self._put_scalars(step)
        if reading is not None:
            reading.put(self.rows, step)
        if is_sampled:
            self._move_and_save()

    def finish(self, step: int, reading: PassReading | None, *, failed: bool) -> Recording:
        """Report what the step in progress left, of its pass (after an exception) this process's share; close."""
        with self.guard("rows of the last step"):
            if self.is_first_process and reading is not None:
                reading.put(self.rows, step)
            self._put_last_scalars(step, failed=failed)
        with self.guard("rows that waited"):
            self.rows.flush()
        self.writer.sites = self._sites()
        if self.guard.missing:
            self.writer.facts["missing"] = self.guard.missing
        return self._close_writer()

    def _exchange(self, merge: Merge, step: int, reading: PassReading | None) -> bool:
        """Merge with the other processes; where that cannot be, this one goes on alone."""
        entries: dict[Key, Entry] = {}
        if reading is not None:
            with self.guard("activations of this step"):
                entries = reading.entries(merge.team.size)
        try:
            if merge.team.agrees():
                merge.exchange(step, entries)
                self.writer.facts["num_processes_merged"] = merge.team.size
                return True
            if self.is_first_process:
                warnings.warn(ALONE, stacklevel=2)
        except Exception as error:
            self.guard.report("the other processes", error)
        self.merge = None
        if self.is_first_process:
            merge.put_own()
        return False

    def _put_last_scalars(self, step: int, *, failed: bool) -> None:
        merge, self.merge = self.merge, None
        if merge is None:
            if self.is_first_process:
                self._put_scalars(step)
            return
        merge.log(step, self._take_scalars())
        if merge.has_met or (not failed and merge.team.agrees()):
            merge.finish(failed=failed)
        elif self.is_first_process:
            merge.put_own()

    def _close_writer(self) -> Recording:
        try:
            return self.writer.close()
        except Exception as error:  # a full disk, most often: the run itself is not lost for it
            self.guard.report("the rest of the recording", error)
        try:
            saved = Recording.load(self.writer.folder or "")
        except (OSError, ValueError):
            saved = Recording(SCHEMA.empty_table())
        return Recording(saved.rows, self.writer.sites, self.writer.facts | {"missing": self.guard.missing})

    def _take_scalars(self) -> dict[str, Value]:
        taken: dict[str, Value] = {
            name: (value, 1.0) if isinstance(value, Tensor) else value for name, value in self._scalars.items()
        }
        self._scalars = {}
        return taken

    def _put_scalars(self, step: int) -> None:
        scalars = self._take_scalars()
        self.rows.put_each(step, {self.rows.code("run", "run", name): value for name, value in scalars.items()})

    def _move_and_save(self) -> None:
        self.rows.flush()
        with self.guard("a listener's part"):
            self.rows.tell()
        if self.writer.folder is not None and time.monotonic() - self._saved_at > SAVE_INTERVAL_S:
            self.writer.sites = self._sites()
            self.writer.flush()
            self._saved_at = time.monotonic()
