"""Filling a recording: rows are gathered in memory and written in the background as Parquet parts, each complete or
absent."""

from __future__ import annotations

import json
import os
import platform
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from kilolayer.recording.parts import Key, Rows, write_part
from kilolayer.recording.recording import Recording
from kilolayer.recording.schema import FORMAT, HEADER, PART_PATTERN, ROLES, SCHEMA
from kilolayer.recording.site import Site

PART_ROWS, MOST_PART_ROWS, VALUES_PER_SITE = 500_000, 4_000_000, 20
"""Rows of a part: enough for a site's names to cost little beside its values, and no more than memory bears."""

LAST_STEP = int(np.iinfo(np.int32).max)


def replace_file(path: Path, data: bytes) -> None:
    """Write under a temporary name, flush, rename: a reader never sees half a file."""
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb") as handle:
        handle.write(data)
        handle.flush()
        os.fsync(handle.fileno())
    os.replace(temporary, path)


def open_folder(folder: Path) -> None:
    """Make a folder for a recording.

    Raises:
        FileExistsError: it already holds one or parts of one, or is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file; a recording needs a folder")
    if (folder / HEADER).exists() or any(folder.glob(PART_PATTERN)):
        raise FileExistsError(f"{folder} already holds a recording; choose another folder")
    folder.mkdir(parents=True, exist_ok=True)


def write_header(
    folder: Path, sites: Sequence[Site], facts: dict[str, Any], *, num_parts: int, is_open: bool = False
) -> None:
    """Write the site table, the facts, and how many parts there are.

    While a recording is open its header also names the process that writes it, so that whoever follows it can tell
    a run that died from one that is silent.

    Raises:
        TypeError: a fact that JSON cannot hold.
    """
    header = {"format": FORMAT, "parts": num_parts, "facts": facts, "sites": [site.to_dict() for site in sites]}
    if is_open:
        header["writer"] = {"host": platform.node(), "pid": os.getpid()}
    try:
        text = json.dumps(header, indent=1)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"the facts hold what JSON cannot ({error}); facts are numbers, texts, lists and dictionaries of them"
        ) from error
    replace_file(folder / HEADER, text.encode())


class RecordingWriter:
    """Collects rows; with ``folder`` it also writes them, a part at a time.

    Parts are written by a thread of their own, one at a time, and renamed when complete: a process that is killed
    leaves a recording that lacks at most the rows since the last part. Memory holds the part being written and the
    one being filled.

    Args:
        folder: where to write; ``None`` keeps everything in memory.
        part_rows: rows per Parquet part; ``None``: half a million, or up to four million where 20 values of each
            statistic of each site take more.

    Raises:
        FileExistsError: the folder already holds a recording, or is a file.
        ValueError: ``part_rows`` below 1.

    Examples:
        >>> writer = RecordingWriter()
        >>> writer.add(0, "run", "run", "loss", 2.3)
        >>> writer.close()
        Recording(1 rows, 0 sites, 1 steps)
    """

    def __init__(self, folder: str | Path | None = None, *, part_rows: int | None = None):
        if part_rows is not None and part_rows < 1:
            raise ValueError(f"part_rows must be >= 1, got {part_rows}")
        self.folder = Path(folder) if folder is not None else None
        self.part_rows = part_rows
        self.sites: list[Site] = []
        self.facts: dict[str, Any] = {}
        self._codes: dict[Key, int] = {}
        self._pending: list[tuple[int, np.ndarray, np.ndarray]] = []
        self._num_pending = 0
        self._kept: list[pa.Table] = []
        self._num_parts = 0
        self._header: tuple[Any, ...] | None = None
        self._thread: PartThread | None = None
        if self.folder is not None:
            open_folder(self.folder)

    def code(self, site: str, role: str, stat: str) -> int:
        """The number that stands for (site, role, stat); callers on a hot path keep it."""
        key = (site, role, stat)
        if key not in self._codes:
            if not all(isinstance(label, str) for label in key):
                raise TypeError(f"site, role and stat must be names, got {key!r}")
            if role not in ROLES:
                raise ValueError(f"role {role!r} is unknown; use one of {', '.join(ROLES)}")
            self._codes[key] = len(self._codes)
        return self._codes[key]

    def add(self, step: int, site: str, role: str, stat: str, value: float) -> None:
        """Add one row."""
        try:
            number = float(value)
        except (TypeError, ValueError) as error:
            raise TypeError(f"the value of {site} {role} {stat} must be a number, got {value!r}") from error
        self.add_many(step, np.array([self.code(site, role, stat)]), np.array([number]))

    def add_many(self, step: int, codes: np.ndarray, values: np.ndarray) -> None:
        """Add the rows of one step: ``codes`` (int) from :meth:`code` and ``values``, both ``(num_rows,)``."""
        if len(codes) != len(values):
            raise ValueError(f"{len(codes)} codes but {len(values)} values")
        if not isinstance(step, (int, np.integer)):
            raise TypeError(f"step must be an int, got {step!r}")
        if not 0 <= step <= LAST_STEP:
            raise ValueError(f"step must be >= 0 and at most {LAST_STEP:,}, got {step}")
        with np.errstate(over="ignore"):
            # Copies: the caller may use its arrays again.
            self._pending.append((step, np.array(codes, np.int32), np.array(values, np.float32)))
        self._num_pending += len(codes)
        if self._num_pending >= self._rows_of_a_part():
            self.flush()

    def _rows_of_a_part(self) -> int:
        if self.part_rows is not None:
            return self.part_rows
        return min(max(PART_ROWS, VALUES_PER_SITE * len(self._codes)), MOST_PART_ROWS)

    def flush(self) -> None:
        """Begin to write what is pending as a part, once the part before is written; without a folder keep it.

        Raises:
            OSError: the part before could not be written.
        """
        if not self._pending:
            return
        pending, self._pending, self._num_pending = self._pending, [], 0
        rows = _joined(pending, list(self._codes))
        if self.folder is None:
            self._kept.append(rows.table())
            return
        self.wait()
        self._save_header()
        self._thread = PartThread(self.folder, self._num_parts, rows)
        self._thread.start()
        self._num_parts += 1

    def wait(self) -> None:
        """Return once every part that was begun is on disk.

        Raises:
            OSError: it could not be written.
        """
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
            if thread.error is not None:
                raise thread.error

    def close(self) -> Recording:
        """Flush, write the header and return the recording."""
        self.flush()
        self.wait()
        if self.folder is not None:
            write_header(self.folder, self.sites, self.facts, num_parts=self._num_parts)
            return Recording.load(self.folder)
        rows = pa.concat_tables(self._kept) if self._kept else SCHEMA.empty_table()
        return Recording(rows, self.sites, self.facts)

    def _save_header(self) -> None:
        """Write the header anew where the sites or the facts have changed; the parts need not be counted before the
        end."""
        assert self.folder is not None
        header = (*self.sites, json.dumps(self.facts, default=str))
        if header != self._header:
            write_header(self.folder, self.sites, self.facts, num_parts=self._num_parts, is_open=True)
            self._header = header


class PartThread(threading.Thread):
    """Writes one part; an interpreter that ends waits for it."""

    def __init__(self, folder: Path, index: int, rows: Rows):
        super().__init__(name="kilolayer-recording")
        self.error: Exception | None = None
        self._folder, self._index, self._rows = folder, index, rows

    def run(self) -> None:
        """Write it."""
        try:
            write_part(self._folder, self._index, [group.table() for group in self._rows.groups()])
        except Exception as error:
            self.error = error


def _joined(pending: list[tuple[int, np.ndarray, np.ndarray]], keys: list[Key]) -> Rows:
    steps = np.concatenate([np.full(len(codes), step, np.int32) for step, codes, _ in pending])
    codes = np.concatenate([codes for _, codes, _ in pending])
    values = np.concatenate([values for _, _, values in pending])
    return Rows(steps, codes, values, keys)
