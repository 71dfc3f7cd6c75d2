"""Data sets of Hugging Face by name: ``datasets:NAME`` or ``datasets:NAME,CONFIGURATION``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kilolayer.train.pairs import Pair

PREFIX = "datasets:"
MISSING_EXTRA = "data sets of Hugging Face need datasets: pip install datasets"


def is_hub_name(data: str) -> bool:
    """Whether data are named as ``datasets:NAME`` or ``datasets:NAME,CONFIGURATION``."""
    return data.startswith(PREFIX)


def load_texts(data: str) -> Iterator[str]:
    """The ``text`` column of a data set's training split, a line end behind each entry.

    Raises:
        ValueError: a data set without such a column.
        ImportError: datasets is not installed.
    """
    for row in _load_rows(data, column="text"):
        yield f"{row['text']}\n"


def load_hub_pairs(data: str) -> list[Pair]:
    """Sentence pairs from the ``translation`` column: its first language into its second.

    Raises:
        ValueError: a data set without such a column, or one of fewer than two languages.
        ImportError: datasets is not installed.
    """
    pairs = []
    for row in _load_rows(data, column="translation"):
        sides = list(row["translation"].values())
        if len(sides) < 2:
            raise ValueError(f"{data} has translations of one language only; two are wanted")
        pairs.append((sides[0], sides[1]))
    return pairs


def _load_rows(data: str, *, column: str) -> Any:
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise ImportError(MISSING_EXTRA) from error
    name, _, configuration = data.removeprefix(PREFIX).partition(",")
    if not name:
        raise ValueError(f"data {data!r} names no data set; use datasets:NAME, or a file")
    try:
        rows = load_dataset(name, configuration or None, split="train")
    except Exception as error:  # whatever the library and what it builds on raise
        why = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(
            f"{data} cannot be loaded ({why}); check the name, and the network, or name a file or a folder of files"
        ) from error
    if column not in rows.column_names:
        raise ValueError(f"{data} has no column {column!r}; it has {', '.join(rows.column_names)}")
    return rows
