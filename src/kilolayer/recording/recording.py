"""A recording: rows, a site table and facts, with the few questions judges and pictures ask of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from kilolayer.recording.parts import Rows, write_part
from kilolayer.recording.reading import read_folder
from kilolayer.recording.schema import SCHEMA
from kilolayer.recording.site import Site
from kilolayer.recording.sources import Columns, MemoryRows, RowSource, SavedRows
from kilolayer.representation import repr_html

MISSING_EXTRA = "a DataFrame needs pandas: pip install 'kilolayer[report]'"

KEPT_ROWS = 16_000_000
"""Rows of statistics already asked for that a recording keeps at hand, 12 bytes each."""


class Recording:
    """What was measured of one run.

    Args:
        rows: table with the columns ``step, site, role, stat, value``.
        sites: the site table.
        facts: what is known of the set-up: versions, optimizer, batch, loss; plain JSON values.

    Raises:
        TypeError: rows that are no table.
        ValueError: rows with other columns.

    Examples:
        >>> from kilolayer.recording import RecordingWriter
        >>> writer = RecordingWriter()
        >>> writer.add(0, "run", "run", "loss", 2.5)
        >>> recording = writer.close()
        >>> recording.series("run", "run", "loss")[1].tolist()
        [2.5]
    """

    def __init__(self, rows: pa.Table | RowSource, sites: Sequence[Site] = (), facts: dict[str, Any] | None = None):
        self._source: RowSource = rows if isinstance(rows, (MemoryRows, SavedRows)) else MemoryRows(_checked(rows))
        self._selected: dict[tuple[str, str], Columns] = {}
        self.sites = tuple(sites)
        self.facts = dict(facts or {})

    @cached_property
    def rows(self) -> pa.Table:
        """All rows as one table. The rows of one site, role and statistic are in the order of their steps."""
        return self._source.table()

    def __len__(self) -> int:
        return self._source.num_rows

    _repr_html_ = repr_html

    def __repr__(self) -> str:
        return f"Recording({len(self)} rows, {len(self.sites)} sites, {len(self.steps())} steps)"

    # ------------------------------------------------------------------ questions
    def _select(self, role: str, stat: str) -> Columns:
        """The rows of one statistic; kept, as a question is seldom asked alone, up to a bound."""
        key = (role, stat)
        if key not in self._selected:
            found = self._source.select(role, stat)
            while self._selected and sum(len(one.steps) for one in self._selected.values()) > KEPT_ROWS:
                del self._selected[next(iter(self._selected))]
            self._selected[key] = found
        return self._selected[key]

    def steps(self, role: str | None = None, stat: str | None = None) -> np.ndarray:
        """The steps with at least one row of this role and statistic, ascending."""
        return self._source.steps(role, stat)

    def has(self, role: str, stat: str) -> bool:
        """Whether any row of this role and statistic was recorded: missing is not the same as clean."""
        return len(self._select(role, stat).steps) > 0

    def stats(self, role: str) -> tuple[str, ...]:
        """The statistics recorded under a role, by name: of ``"run"`` the scalars, such as ``"loss"`` and ``"lr"``."""
        return self._source.stats(role)

    def series(self, site: str, role: str, stat: str) -> tuple[np.ndarray, np.ndarray]:
        """One statistic of one site over time.

        Returns:
            steps (ascending) and values, both of shape ``(num_steps,)``.
        """
        found = self._select(role, stat)
        if site not in found.names:
            return found.steps[:0], found.values[:0]
        rows = np.flatnonzero(found.sites == found.names.index(site))
        rows = rows[np.argsort(found.steps[rows], kind="stable")]
        return found.steps[rows], found.values[rows]

    def matrix(self, role: str, stat: str, sites: Iterable[Site | str]) -> tuple[np.ndarray, np.ndarray]:
        """One statistic over steps and sites; NaN where no row exists.

        Returns:
            steps of shape ``(num_steps,)`` and values of shape ``(num_steps, num_sites)``.
        """
        names = [site if isinstance(site, str) else site.name for site in sites]
        steps, row, column, found = self._cells(role, stat, names)
        values = np.full((len(steps), len(names)), np.nan)
        values[row, column] = found
        return steps, values

    def recorded(self, role: str, stat: str, sites: Iterable[Site | str]) -> np.ndarray:
        """Where :meth:`matrix` has a row, same shape: a value that is NaN is not a missing one."""
        names = [site if isinstance(site, str) else site.name for site in sites]
        steps, row, column, _ = self._cells(role, stat, names)
        recorded = np.zeros((len(steps), len(names)), dtype=bool)
        recorded[row, column] = True
        return recorded

    def _cells(
        self, role: str, stat: str, names: Sequence[str]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """The steps, and for each row of these sites its place among them, its site's and its value."""
        found = self._select(role, stat)
        numbers = {name: number for number, name in enumerate(found.names)}
        place = np.full(len(numbers) + 1, -1, np.int32)
        for position, name in enumerate(names):
            if name in numbers:
                place[numbers[name]] = position
        column = place[found.sites]
        kept = slice(None) if column.size and column.min() >= 0 else column >= 0
        steps, row = np.unique(found.steps[kept], return_inverse=True)
        return steps, row, column[kept], found.values[kept]

    def site_names(self, role: str, stat: str) -> tuple[str, ...]:
        """The sites with a row of this role and statistic, those of the site table or not."""
        found = self._select(role, stat)
        return tuple(found.names[number] for number in np.unique(found.sites))

    def curve(self, role: str, stat: str, sites: Iterable[Site | str], step: int = 0) -> np.ndarray:
        """One statistic along the depth at one step, shape ``(num_sites,)``; NaN where no row exists."""
        sites = list(sites)
        steps, values = self.matrix(role, stat, sites)
        found = np.flatnonzero(steps == step)
        return values[found[0]] if len(found) else np.full(len(sites), np.nan)

    def stream(self) -> tuple[Site, ...]:
        """The sites that stand for the signal along the depth, in order."""
        return tuple(sorted((s for s in self.sites if s.stream), key=lambda s: s.order))

    def weights(self) -> tuple[Site, ...]:
        """The weight matrices inside the blocks, in order."""
        chosen = (s for s in self.sites if s.kind == "weight" and s.block_index is not None)
        return tuple(sorted(chosen, key=lambda s: s.order))

    def site(self, name: str) -> Site:
        """The site of this name; ``KeyError`` where the table has none."""
        for site in self.sites:
            if site.name == name:
                return site
        raise KeyError(f"no site {name!r} in this recording ({len(self.sites)} sites)")

    def to_pandas(self) -> Any:
        """The rows as a pandas DataFrame.

        Raises:
            ImportError: pandas (of the ``report`` extra) is not installed.
        """
        try:
            import pandas  # noqa: F401
        except ImportError as error:
            raise ImportError(MISSING_EXTRA) from error
        return self.rows.to_pandas()

    # ------------------------------------------------------------------ disk
    @classmethod
    def load(cls, folder: str | Path) -> Recording:
        """Read a recording saved in ``folder``.

        Raises:
            FileNotFoundError: no recording is there.
            ValueError: written by a newer kilolayer, damaged, or incomplete.

        Examples:
            >>> import tempfile
            >>> from kilolayer.recording import RecordingWriter
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     len(Recording.load(RecordingWriter().close().save(folder)))
            0
        """
        return cls(*read_folder(Path(folder)))

    def save(self, folder: str | Path) -> Path:
        """Write the recording into ``folder`` (made if missing).

        Raises:
            FileExistsError: the folder already holds a recording, or is a file.
        """
        from kilolayer.recording.writer import open_folder, write_header

        folder = Path(folder)
        open_folder(folder)
        write_part(folder, 0, [group.table() for group in Rows.of(self.rows).groups()])
        write_header(folder, self.sites, self.facts, num_parts=1)
        return folder


def _checked(rows: Any) -> pa.Table:
    if not isinstance(rows, pa.Table):
        raise TypeError(f"rows must be a pyarrow Table, got {type(rows).__name__}; fill a RecordingWriter instead")
    if sorted(rows.column_names) != sorted(SCHEMA.names):
        raise ValueError(f"rows have the columns {', '.join(SCHEMA.names)}; got {', '.join(rows.column_names)}")
    rows = rows.select(SCHEMA.names)
    return rows.cast(SCHEMA) if rows.schema != SCHEMA else rows
