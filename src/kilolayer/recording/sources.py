"""Where a recording's rows are: in memory, or on disk, where one statistic is read without the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kilolayer.recording.schema import LABEL, SCHEMA

LABELS = ("site", "role", "stat")
AGAIN = "copy the whole folder again, or delete it and record anew"


class Columns(NamedTuple):
    """Rows of one statistic: steps, numbers of sites, values, all ``(num_rows,)``, and the sites' names by number."""

    steps: np.ndarray
    sites: np.ndarray
    values: np.ndarray
    names: tuple[str, ...]


class RowSource(Protocol):
    """What a recording asks of its rows."""

    @property
    def num_rows(self) -> int:
        """How many there are."""

    def table(self) -> pa.Table:
        """All of them."""

    def select(self, role: str, stat: str) -> Columns:
        """Those of one statistic."""

    def steps(self, role: str | None, stat: str | None) -> np.ndarray:
        """The steps, ascending, with a row of this role and statistic; ``None`` stands for any."""

    def stats(self, role: str) -> tuple[str, ...]:
        """The statistics with a row of this role, by name."""


class MemoryRows:
    """Rows held as one table."""

    def __init__(self, table: pa.Table):
        self._table = table
        merged = table.unify_dictionaries().combine_chunks()
        self._steps = _numbers(merged, "step")
        self._values = _numbers(merged, "value")
        self._codes: dict[str, np.ndarray] = {}
        self._names: dict[str, tuple[str, ...]] = {}
        for label in LABELS:
            column = merged.column(label)
            chunk = column.chunk(0) if column.num_chunks else pa.array([], type=LABEL)
            self._codes[label] = chunk.indices.to_numpy(zero_copy_only=False)
            self._names[label] = tuple(chunk.dictionary.to_pylist())

    @property
    def num_rows(self) -> int:
        """How many there are."""
        return int(self._table.num_rows)

    def table(self) -> pa.Table:
        """All of them."""
        return self._table

    def select(self, role: str, stat: str) -> Columns:
        """Those of one statistic."""
        found = np.flatnonzero(self._mask(role, stat))
        return Columns(self._steps[found], self._codes["site"][found], self._values[found], self._names["site"])

    def steps(self, role: str | None, stat: str | None) -> np.ndarray:
        """The steps with a row of this role and statistic."""
        return np.unique(self._steps[self._mask(role, stat)])

    def stats(self, role: str) -> tuple[str, ...]:
        """The statistics with a row of this role, by name."""
        return tuple(
            sorted(self._names["stat"][code] for code in np.unique(self._codes["stat"][self._mask(role, None)]))
        )

    def _mask(self, role: str | None, stat: str | None) -> np.ndarray:
        mask = np.ones(self.num_rows, dtype=bool)
        for label, wanted in (("role", role), ("stat", stat)):
            if wanted is not None:
                names = self._names[label]
                mask &= self._codes[label] == (names.index(wanted) if wanted in names else -1)
        return mask


class SavedRows:
    """Rows in Parquet parts, of which only the row groups with a wanted statistic are read.

    Args:
        paths: the parts in order.

    Raises:
        ValueError: one of them is damaged or no part of a recording.
    """

    def __init__(self, paths: Sequence[Path]):
        self._parts = [(path, read_metadata(path)) for path in paths]

    @property
    def num_rows(self) -> int:
        """How many there are."""
        return sum(metadata.num_rows for _, metadata in self._parts)

    def table(self) -> pa.Table:
        """All of them."""
        tables = [_read(path, None) for path, _ in self._parts]
        return pa.concat_tables(tables) if tables else SCHEMA.empty_table()

    def select(self, role: str, stat: str) -> Columns:
        """Those of one statistic."""
        size = sum(metadata.row_group(group).num_rows for _, metadata, group in self._groups(role, stat))
        steps, sites, values = np.empty(size, np.int32), np.empty(size, np.int32), np.empty(size, np.float32)
        numbers: dict[str, int] = {}
        end = 0
        for path, _, group in self._groups(role, stat):
            found = MemoryRows(_read(path, group)).select(role, stat)
            new = np.array([numbers.setdefault(name, len(numbers)) for name in found.names], np.int32)
            start, end = end, end + len(found.steps)
            steps[start:end], values[start:end] = found.steps, found.values
            sites[start:end] = new[found.sites]
        return Columns(steps[:end], sites[:end], values[:end], tuple(numbers))

    def steps(self, role: str | None, stat: str | None) -> np.ndarray:
        """The steps with a row of this role and statistic."""
        found = [np.empty(0, np.int32)]
        for path, _, group in self._groups(role, stat):
            found.append(MemoryRows(_read(path, group)).steps(role, stat))
        return np.unique(np.concatenate(found))

    def stats(self, role: str) -> tuple[str, ...]:
        """The statistics with a row of this role, by name."""
        groups = self._groups(role, None)
        return tuple(sorted({name for path, _, group in groups for name in MemoryRows(_read(path, group)).stats(role)}))

    def _groups(self, role: str | None, stat: str | None) -> Iterator[tuple[Path, pq.FileMetaData, int]]:
        """The row groups that may hold such rows."""
        for path, metadata in self._parts:
            for group in range(metadata.num_row_groups):
                if _may_hold(metadata.row_group(group), {"role": role, "stat": stat}):
                    yield path, metadata, group


def read_metadata(path: Path) -> pq.FileMetaData:
    """What a part says of itself, checked.

    Raises:
        ValueError: it is damaged or no part of a recording.
    """
    try:
        metadata = pq.read_metadata(path)
        schema = metadata.schema.to_arrow_schema()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _damaged(path, error) from error
    if lacking := [name for name in SCHEMA.names if name not in schema.names]:
        raise ValueError(
            f"{path} is no part of a recording: it lacks the columns {', '.join(lacking)} (it has "
            f"{', '.join(schema.names) or 'none'}); {AGAIN}"
        )
    for name in SCHEMA.names:
        if not _fits(name, schema.field(name).type):
            raise ValueError(f"{path} is no part of a recording ({name} is {schema.field(name).type}); {AGAIN}")
    return metadata


def _read(path: Path, group: int | None) -> pa.Table:
    """One row group of a part, or (``None``) all of it, checked and in the schema."""
    try:
        # Not read_table, which takes columns from the names of folders such as "lr=0.1" too.
        file = pq.ParquetFile(path, read_dictionary=list(LABELS))
        rows = file.read(SCHEMA.names) if group is None else file.read_row_group(group, SCHEMA.names)
    except PermissionError as error:
        raise PermissionError(error.errno, "Permission denied", str(path)) from error
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _damaged(path, error) from error
    try:
        rows = rows.select(SCHEMA.names).cast(SCHEMA)
    except (pa.ArrowException, ValueError) as error:
        raise ValueError(f"{path} is no part of a recording ({_short(error)}); {AGAIN}") from error
    if empty := [name for name in SCHEMA.names if rows.column(name).null_count]:
        raise ValueError(f"{path} is damaged: {', '.join(empty)} has rows without a value; {AGAIN}")
    return rows


def _may_hold(group: pq.RowGroupMetaData, wanted: dict[str, str | None]) -> bool:
    for index in range(group.num_columns):
        column = group.column(index)
        label = wanted.get(column.path_in_schema)
        found = column.statistics if label is not None else None
        if found is not None and found.has_min_max and not found.min <= label <= found.max:
            return False
    return True


def _fits(name: str, kind: pa.DataType) -> bool:
    if name == "step":
        return bool(pa.types.is_integer(kind))
    if name == "value":
        return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _numbers(table: pa.Table, name: str) -> np.ndarray:
    return table.column(name).to_numpy()


def _damaged(path: Path, error: Exception) -> ValueError:
    return ValueError(f"{path} is damaged ({_short(error)}); {AGAIN}")


def _short(error: Exception) -> str:
    """The first line: Arrow adds what its reader went through."""
    return str(error).partition("\n")[0]
