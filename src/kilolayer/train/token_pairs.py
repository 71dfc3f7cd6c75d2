"""Sentence pairs as tokens, packed behind each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Ragged:
    """Token sequences behind each other: sequence i is ``flat[starts[i]:starts[i + 1]]``."""

    flat: np.ndarray
    starts: np.ndarray

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]]) -> Ragged:
        """From lists of token ids."""
        starts = np.cumsum([0, *(len(ids) for ids in sequences)], dtype=np.int64)
        return cls(np.array([token for ids in sequences for token in ids], dtype=np.int32), starts)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, index: int) -> np.ndarray:
        return self.flat[self.starts[index] : self.starts[index + 1]]

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each sequence."""
        return np.diff(self.starts)


@dataclass(frozen=True, eq=False)
class TokenPairs:
    """Sources and targets as tokens, without start or end."""

    source: Ragged
    target: Ragged

    def __len__(self) -> int:
        return len(self.source)
