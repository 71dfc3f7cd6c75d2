"""Following the recording of a run that may still be running, from nothing but its files."""

from __future__ import annotations

import json
import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kilolayer.recording.schema import HEADER
from kilolayer.report.run_folder import load_run, recording_files
from kilolayer.report.view import RunView

State = Literal["waiting", "running", "silent", "died", "finished"]
"""``silent``: the run is not known to be dead, but wrote nothing for :data:`SILENT_S`."""

SILENT_S = 300.0

ENDED: tuple[State, ...] = ("died", "finished")


@dataclass(frozen=True, eq=False)
class Glance:
    """A run as it was at one moment.

    Args:
        folder: of the run.
        state: what became of the process that writes it.
        view: what is saved so far; ``None`` while there is nothing.
        age_s: seconds since something was saved.

    Examples:
        >>> from pathlib import Path
        >>> Glance(Path("runs/a"), "waiting").view is None
        True
    """

    folder: Path
    state: State
    view: RunView | None = None
    age_s: float | None = None

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will come."""
        return self.state in ENDED


class RunFollower:
    """Reads a run again whenever its files have changed.

    Args:
        folder: of the run; it may not exist yet.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     RunFollower(folder).look().state
        'waiting'
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        self._seen: tuple[Any, ...] = ()
        self._view: RunView | None = None

    def look(self) -> Glance:
        """The run as it is now.

        Raises:
            ValueError: its files are damaged, or from a newer kilolayer.
        """
        try:
            files = recording_files(self.folder)
            seen = tuple((path, stat.st_mtime_ns, stat.st_size) for path in files for stat in [path.stat()])
        except FileNotFoundError:  # renamed between listing and looking: the next look finds it
            files, seen = [], ()
        if not files:
            return Glance(self.folder, "waiting")
        if seen != self._seen:
            self._view, self._seen = load_run(self.folder), seen
        age_s = max(time.time() - max(modified for _, modified, _ in seen) / 1e9, 0.0)
        return Glance(self.folder, _state(files, age_s), self._view, age_s)


def _state(files: list[Path], age_s: float) -> State:
    headers = [path for path in files if path.name == HEADER]
    writer = _writer(headers[-1]) if headers else None
    if writer is None:
        # Segments are closed one by one; the run has ended when they are joined.
        in_segments = len(headers) > 1 or (bool(headers) and headers[-1].parent.parent.name == "recordings")
        return ("silent" if age_s > SILENT_S else "running") if in_segments else "finished"
    alive = _is_alive(writer)
    if alive is None:
        return "silent" if age_s > SILENT_S else "running"
    return "running" if alive else "died"


def _writer(header: Path) -> dict[str, Any] | None:
    """The process that writes a recording; ``None`` where it is closed, or from before headers said so."""
    try:
        writer = json.loads(header.read_text(encoding="utf-8")).get("writer")
    except (OSError, ValueError, AttributeError):
        return None
    return writer if isinstance(writer, dict) else None


def _is_alive(writer: dict[str, Any]) -> bool | None:
    """Whether a process of this machine runs; ``None`` where that cannot be known."""
    pid = writer.get("pid")
    # On Windows os.kill ends a process instead of asking after it.
    if os.name != "posix" or writer.get("host") != platform.node() or not isinstance(pid, int) or pid <= 0:
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    """Whether a process has ended and only waits to be collected (Linux)."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[:1] == ["Z"]
