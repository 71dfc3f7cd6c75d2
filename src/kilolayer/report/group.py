"""The parts of an HTML report's page: pictures, and groups of like pictures."""

from __future__ import annotations

from dataclasses import dataclass

from kilolayer.report.numbers import NumberTable
from kilolayer.report.scale import ColorScale


@dataclass(frozen=True)
class Picture:
    """One drawing: its run, what it shows in words, its numbers as a table; ``panel`` is its place in the data,
    ``None`` where nothing was recorded."""

    run: str
    words: str
    panel: int | None
    numbers: NumberTable | None = None


@dataclass(frozen=True)
class Group:
    """The same quantity of every run, next to each other."""

    key: str
    title: str
    meaning: str
    pictures: tuple[Picture, ...]
    scale: ColorScale | None = None
