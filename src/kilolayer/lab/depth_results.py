"""What a grid of depths came to: by scheme and depth the best rate, its loss, and where nothing trains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

MARKS = {"trains": "", "stuck": "stuck", "non-finite": "nan", "unstable": "unstable"}
TABLE = "results.parquet"


@dataclass(frozen=True)
class Standing:
    """A scheme at one depth.

    Attributes:
        scheme, layers: which.
        losses: held-out loss by rate, the mean over seeds; NaN where a seed did not get to the end.
        outcomes: by rate, one per seed.
    """

    scheme: str
    layers: int
    losses: dict[float, float]
    outcomes: dict[float, tuple[str, ...]]

    @property
    def best_lr(self) -> float | None:
        """The rate of the least loss among those at which every seed trains."""
        trained = {lr: self.losses[lr] for lr, those in self.outcomes.items() if set(those) == {"trains"}}
        return min(trained, key=trained.__getitem__) if trained else None

    @property
    def best_loss(self) -> float:
        """The loss there; NaN where no rate trains."""
        return float("nan") if self.best_lr is None else self.losses[self.best_lr]

    def describe(self, lr: float) -> str:
        """One entry of a table: the loss, or how it failed."""
        if lr not in self.outcomes:
            return "-"
        failed = [MARKS[one] for one in self.outcomes[lr] if one != "trains"]
        return f"{self.losses[lr]:.3f}" if not failed else f"{failed[0]} {len(failed)}/{len(self.outcomes[lr])}"


def stand(records: Sequence[dict[str, Any]]) -> list[Standing]:
    """Records of cells by scheme and depth, in order of depth."""
    groups: dict[tuple[str, int], dict[float, list[dict[str, Any]]]] = {}
    for record in records:
        rule = f":{record['rule']}" if record["rule"] else ""
        key = f"{record['scheme']}{rule}", record["decoder_layers"]
        groups.setdefault(key, {}).setdefault(record["lr"], []).append(record)
    return [
        Standing(
            scheme,
            layers,
            {lr: float(np.mean([_number(one["held_out_loss"]) for one in those])) for lr, those in by_lr.items()},
            {lr: tuple(one["outcome"] for one in those) for lr, those in by_lr.items()},
        )
        for (scheme, layers), by_lr in sorted(groups.items(), key=lambda item: item[0][1])
    ]


def sentence(standings: Sequence[Standing]) -> str:
    """The deepest networks in a sentence: who trains, who is best, who does not train at any rate."""
    deepest = max(one.layers for one in standings)
    there = [one for one in standings if one.layers == deepest]
    trained = sorted((one for one in there if one.best_lr is not None), key=lambda one: one.best_loss)
    failed = [one.scheme for one in there if one.best_lr is None]
    parts = [f"{one.scheme} ends at {one.best_loss:.3f} nats (lr {one.best_lr:g})" for one in trained]
    if failed:
        parts.append(f"{', '.join(failed)} {'trains' if len(failed) == 1 else 'train'} at no rate tried")
    return f"At {deepest} layers {'; '.join(parts)}."


def save_table(records: Sequence[dict[str, Any]], folder: Path) -> Path:
    """Every cell as a row of one Parquet file; lists such as the losses are columns of lists."""
    path = folder / TABLE
    rows = [{key: value for key, value in record.items() if key != "finding"} for record in records]
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)
