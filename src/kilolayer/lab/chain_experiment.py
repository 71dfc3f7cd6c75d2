"""The parts of ``kilolayer lab chain``, what its runs share, and predicted beside measured."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kilolayer.lab.chain_batch_norm import BATCH_NORM
from kilolayer.lab.chain_gains import FIXED, GAINS
from kilolayer.lab.chain_growth import GROWTH
from kilolayer.lab.chain_products import PRODUCTS
from kilolayer.lab.chain_rectangular import RECTANGULAR
from kilolayer.lab.chain_run import ChainPart, ChainRun, Expected, Key
from kilolayer.lab.experiment import OnStep, finished_runs
from kilolayer.schemes.suggest import unknown_name

PARTS: tuple[ChainPart, ...] = (GAINS, RECTANGULAR, FIXED, GROWTH, PRODUCTS, BATCH_NORM)
CLOSE = 0.1
"""A figure is as predicted when a seed's comes this close to the value, relative to it, or lies in the band."""
ZERO = 1e-6
"""What is predicted to be 0 is below this."""


def get_part(name: str) -> ChainPart:
    """The part of this name.

    Raises:
        ValueError: no such part; the nearest name is suggested.
    """
    for part in PARTS:
        if part.name == name:
            return part
    raise unknown_name("part", name, [part.name for part in PARTS])


@dataclass(frozen=True)
class ChainExperiment:
    """A set of runs of one depth and width."""

    runs: tuple[ChainRun, ...]

    @property
    def continues(self) -> bool:
        """A run takes seconds; one that was stopped starts anew."""
        return False

    def shared(self) -> dict[str, Any]:
        """The settings that decide whether two experiments may share a folder."""
        return {"lab": "chain", "blocks": self.runs[0].num_blocks, "width": self.runs[0].width}

    def load_data(self) -> None:
        """All inputs are drawn."""

    def data_check(self, data: None) -> str:
        """Nothing to tell apart."""
        return ""

    def carry_out(self, run: ChainRun, data: None, folder: Path, on_step: OnStep) -> dict[str, Any]:
        """One part on one seed."""
        figures = get_part(run.part).measure(run)
        on_step(1)
        return {"figures": [[*key, value] for key, value in figures.items()]}


@dataclass(frozen=True)
class Row:
    """One figure, predicted and measured.

    Attributes:
        part: name of its part.
        key: what it is of.
        expected: what theory says, ``None`` where it says nothing.
        measured: by seed.
    """

    part: str
    key: Key
    expected: Expected | None
    measured: tuple[float, ...]

    @property
    def seeds_as_predicted(self) -> int | None:
        """How many seeds are as predicted, see :data:`CLOSE`; ``None`` without a prediction."""
        return None if self.expected is None else sum(is_as_predicted(value, self.expected) for value in self.measured)

    def to_json(self) -> dict[str, Any]:
        """``{"part", "case", "quantity", "at", "unit", "predicted", "low", "high", "measured"}``."""
        value, low, high = self.expected or (None, None, None)
        bounds = {"predicted": value, "low": low, "high": high}
        return {"part": self.part, **self.key._asdict(), "unit": get_part(self.part).unit, **bounds} | {
            "measured": list(self.measured)
        }


def is_as_predicted(value: float, expected: Expected) -> bool:
    """Whether a measured value is close to the predicted one, or inside its band."""
    if expected.low is not None and expected.high is not None and expected.low <= value <= expected.high:
        return True
    return math.isclose(value, expected.value, rel_tol=CLOSE, abs_tol=ZERO if expected.value == 0 else 0.0)


def load_rows(experiment: ChainExperiment, folder: Path) -> list[Row]:
    """The finished runs of a folder beside theory, part by part."""
    found = finished_runs(experiment, folder)
    rows = []
    for part in PARTS:
        runs = [run for run in experiment.runs if run.part == part.name and run in found]
        if not runs:
            continue
        expected = part.predict(runs[0])
        by_key: dict[Key, list[float]] = {}
        for run in runs:
            for case, quantity, at, value in found[run]["figures"]:
                by_key.setdefault(Key(case, quantity, at), []).append(value)
        rows += [Row(part.name, key, expected.get(key), tuple(values)) for key, values in by_key.items()]
    return rows
