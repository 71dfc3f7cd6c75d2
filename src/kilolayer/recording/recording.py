"""A recording: rows, a site table and facts, with the few questions judges and pictures ask of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from kilolayer.recording.reading import read_folder
from kilolayer.recording.schema import LABEL, SCHEMA
from kilolayer.recording.site import Site


class Recording:
    """What was measured of one run.

    Args:
        rows: table with the columns ``step, site, role, stat, value``.
        sites: the site table.
        facts: what is known of the set-up: versions, optimizer, batch, loss; plain JSON values.

    Raises:
        TypeError: rows that are no table.
        ValueError: rows with other columns.

    Example:
        >>> import pyarrow as pa
        >>> writer = RecordingWriter()
        >>> writer.add(0, "run", "run", "loss", 2.3)
        >>> recording = writer.close()
        >>> recording.series("run", "run", "loss")[1].round(1).tolist()
        [2.3]
    """

    def __init__(self, rows: pa.Table, sites: Sequence[Site] = (), facts: dict[str, Any] | None = None):
        if not isinstance(rows, pa.Table):
            raise TypeError(f"rows must be a pyarrow Table, got {type(rows).__name__}; fill a RecordingWriter instead")
        if sorted(rows.column_names) != sorted(SCHEMA.names):
            raise ValueError(f"rows have the columns {', '.join(SCHEMA.names)}; got {', '.join(rows.column_names)}")
        rows = rows.select(SCHEMA.names)
        self.rows = rows.cast(SCHEMA) if rows.schema != SCHEMA else rows
        self.sites = tuple(sites)
        self.facts = dict(facts or {})

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def __repr__(self) -> str:
        return f"Recording({len(self)} rows, {len(self.sites)} sites, {len(self.steps())} steps)"

    # ------------------------------------------------------------------ questions
    @cached_property
    def _codes(self) -> dict[str, tuple[np.ndarray, dict[str, int]]]:
        """Integer codes per label column, so that a question is a few NumPy comparisons."""
        out = {}
        rows = self.rows.unify_dictionaries().combine_chunks()
        for name in ("site", "role", "stat"):
            column = rows.column(name)
            chunk = column.chunk(0) if column.num_chunks else pa.array([], type=LABEL)
            labels = {label: code for code, label in enumerate(chunk.dictionary.to_pylist())}
            out[name] = (chunk.indices.to_numpy(zero_copy_only=False), labels)
        return out

    @cached_property
    def _step(self) -> np.ndarray:
        return self.rows.column("step").to_numpy()

    @cached_property
    def _value(self) -> np.ndarray:
        return self.rows.column("value").to_numpy()

    def _mask(self, **labels: str) -> np.ndarray:
        mask = np.ones(len(self), dtype=bool)
        for column, label in labels.items():
            codes, known = self._codes[column]
            mask &= codes == known.get(label, -1)
        return mask

    def steps(self, role: str | None = None, stat: str | None = None) -> np.ndarray:
        """The steps with at least one row of this role and statistic, ascending."""
        wanted = {key: label for key, label in (("role", role), ("stat", stat)) if label is not None}
        return np.unique(self._step[self._mask(**wanted)] if wanted else self._step)

    def has(self, role: str, stat: str) -> bool:
        """Whether any row of this role and statistic was recorded: missing is not the same as clean."""
        return bool(self._mask(role=role, stat=stat).any())

    def series(self, site: str, role: str, stat: str) -> tuple[np.ndarray, np.ndarray]:
        """One statistic of one site over time.

        Returns:
            steps (ascending) and values, both of shape ``(num_steps,)``.
        """
        mask = self._mask(site=site, role=role, stat=stat)
        order = np.argsort(self._step[mask], kind="stable")
        return self._step[mask][order], self._value[mask][order]

    def matrix(self, role: str, stat: str, sites: Iterable[Site | str]) -> tuple[np.ndarray, np.ndarray]:
        """One statistic over steps and sites; NaN where no row exists.

        Returns:
            steps of shape ``(num_steps,)`` and values of shape ``(num_steps, num_sites)``.
        """
        names = [site if isinstance(site, str) else site.name for site in sites]
        mask = self._mask(role=role, stat=stat)
        codes, labels = self._codes["site"]
        place = np.full(len(labels) + 1, -1)
        for position, name in enumerate(names):
            if name in labels:
                place[labels[name]] = position
        column = place[codes[mask]]
        kept = column >= 0
        steps, row = np.unique(self._step[mask][kept], return_inverse=True)
        values = np.full((len(steps), len(names)), np.nan)
        values[row, column[kept]] = self._value[mask][kept]
        return steps, values

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
        """The rows as a pandas DataFrame (needs pandas)."""
        return self.rows.to_pandas()

    # ------------------------------------------------------------------ disk
    @classmethod
    def load(cls, folder: str | Path) -> Recording:
        """Read a recording saved in ``folder``.

        Raises:
            FileNotFoundError: no recording is there.
            ValueError: written by a newer kilolayer, damaged, or incomplete.

        Example:
            >>> import tempfile
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
        from kilolayer.recording.writer import open_folder, write_header, write_part

        folder = Path(folder)
        open_folder(folder)
        write_part(folder, 0, self.rows)
        write_header(folder, self.sites, self.facts, num_parts=1)
        return folder
