"""The rows of a recording on disk: Parquet parts in which the rows of one statistic lie together.

Within a part rows are sorted by role, statistic, site and step, and row groups end where a statistic ends. So the names
take next to nothing, a site's values, which change little from step to step, compress best, and one statistic is read
without the rest.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kilolayer.recording.schema import SCHEMA, part_name

MIN_GROUP_ROWS = 4096
"""Statistics with fewer rows share a row group: each group costs about a kilobyte."""

LARGEST_DICTIONARY = 1 << 26
"""Bytes of names up to which a column holds numbers for them: enough for a million sites."""

Key = tuple[str, str, str]
"""(site, role, stat)"""


class Rows:
    """Rows as they were recorded: per row the step, the number of its key, and the value, all ``(num_rows,)``."""

    def __init__(self, steps: np.ndarray, codes: np.ndarray, values: np.ndarray, keys: Sequence[Key]):
        self.steps, self.codes, self.values, self.keys = steps, codes, values, keys

    @classmethod
    def of(cls, table: pa.Table) -> Rows:
        """The rows of a table in the schema."""
        merged = table.unify_dictionaries().combine_chunks()
        columns = [merged.column(name).combine_chunks() for name in ("site", "role", "stat")]
        indices = np.array([column.indices.to_numpy() for column in columns], np.int64)
        sites, roles, stats = (column.dictionary.to_pylist() for column in columns)
        # One number for the three labels of a row.
        mixed = (indices[0] * len(roles) + indices[1]) * len(stats) + indices[2]
        _, first, codes = np.unique(mixed, return_index=True, return_inverse=True)
        keys = [(sites[site], roles[role], stats[stat]) for site, role, stat in indices[:, first].T]
        steps, values = merged.column("step").to_numpy(), merged.column("value").to_numpy()
        return cls(steps, codes, values, keys)

    def table(self) -> pa.Table:
        """The rows with their names, in the order in which they came."""
        columns = [_array(self.steps, pa.int32())]
        for position in range(3):
            labels = [key[position] for key in self.keys]
            names = {name: index for index, name in enumerate(dict.fromkeys(labels))}
            lookup = np.array([names[label] for label in labels], np.int32)
            columns.append(pa.DictionaryArray.from_arrays(_array(lookup[self.codes], pa.int32()), _texts(list(names))))
        return pa.Table.from_arrays([*columns, _array(self.values, pa.float32())], schema=SCHEMA)

    def groups(self) -> list[Rows]:
        """The rows sorted by role, statistic, site (in order of first use) and step, cut into row groups."""
        used, codes = np.unique(self.codes, return_inverse=True)
        keys = [self.keys[code] for code in used]
        order = sorted(range(len(keys)), key=lambda place: (*keys[place][1:], place))
        rank = np.empty(len(order), np.int32)
        rank[order] = np.arange(len(order))
        # Stable: the rows of one key stay in the order of their steps.
        rows = np.argsort(rank[codes], kind="stable")
        steps, values, ranks = self.steps[rows], self.values[rows], rank[codes][rows]
        keys = [keys[place] for place in order]
        groups = []
        for first, last in _spans(keys, np.bincount(ranks, minlength=len(keys))):
            start, end = np.searchsorted(ranks, (first, last))
            groups.append(Rows(steps[start:end], ranks[start:end] - first, values[start:end], keys[first:last]))
        return groups


def _array(values: np.ndarray, kind: pa.DataType) -> pa.Array:
    # Not pa.array, which imports pandas: half a second, and an error in a thread that outlives the main one.
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def _texts(texts: Sequence[str]) -> pa.StringArray:
    encoded = [text.encode() for text in texts]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(texts), pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded)))


def _spans(keys: Sequence[Key], counts: np.ndarray) -> list[tuple[int, int]]:
    """Runs of keys that make a row group each: a statistic, or several with few rows."""
    starts = [place for place, key in enumerate(keys) if not place or key[1:] != keys[place - 1][1:]]
    spans: list[tuple[int, int]] = []
    was_small = False
    for first, last in itertools.pairwise([*starts, len(keys)]):
        is_small = int(counts[first:last].sum()) < MIN_GROUP_ROWS
        if is_small and was_small:
            spans[-1] = (spans[-1][0], last)
        else:
            spans.append((first, last))
        was_small = is_small
    return spans


def write_part(folder: Path, index: int, groups: Sequence[pa.Table]) -> None:
    """Write one Parquet part, each table a row group; it is renamed into place when complete."""
    path = folder / part_name(index)
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb") as handle:
        with pq.ParquetWriter(
            handle,
            SCHEMA,
            compression="zstd",
            use_byte_stream_split=["value"],
            use_dictionary=["site", "role", "stat", "step"],
            dictionary_pagesize_limit=LARGEST_DICTIONARY,
        ) as writer:
            for group in groups:
                writer.write_table(group, row_group_size=max(1, len(group)))
        handle.flush()
        os.fsync(handle.fileno())
    os.replace(temporary, path)
