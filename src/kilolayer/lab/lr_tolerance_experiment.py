"""The searches of ``kilolayer lab lr-tolerance``: carried out try by try, continued where they were stopped."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kilolayer.lab.character_model import train_characters
from kilolayer.lab.characters import Characters, load_characters
from kilolayer.lab.experiment import OnStep
from kilolayer.lab.lr_tolerance import Search, judge

TRIES = "tries.json"


@dataclass(frozen=True)
class ToleranceExperiment:
    """Searches over one text that share all settings but scheme, depth, warm-up and seed."""

    data: str
    runs: tuple[Search, ...]

    @property
    def continues(self) -> bool:
        """A search goes on from the tries it has made, and from the checkpoint of the one under way."""
        return True

    def shared(self) -> dict[str, Any]:
        """The settings that decide whether two experiments may share a folder."""
        search = self.runs[0]
        base = search.base
        return {
            "lab": "lr-tolerance",
            "data": self.data,
            "width": base.width,
            "steps": base.num_steps,
            "batch_size": base.batch_size,
            "length": base.length,
            "optimizer": base.optimizer,
            "clip": base.clip,
            "lr": list(search.lrs),
            "refinements": search.refinements,
        }

    def load_data(self) -> Characters:
        """The text, checked to be long enough."""
        text = load_characters(self.data)
        text.check_length(self.runs[0].base.length)
        return text

    def data_check(self, data: Characters) -> str:
        """The text's checksum."""
        return data.checksum

    def carry_out(self, run: Search, data: Characters, folder: Path, on_step: OnStep) -> dict[str, Any]:
        """One search."""
        path = folder / TRIES
        tries: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
        while (lr := run.next_lr({one["lr"]: one["outcome"] for one in tries})) is not None:
            # A checkpoint that is found is of this very try: those before are in the file, and theirs are gone.
            result = train_characters(
                run.at(lr), data, folder, _counting_from(len(tries) * run.base.num_steps, on_step)
            )
            tries.append({"lr": lr, "outcome": judge(result)} | result)
            _save(tries, path)
        path.unlink()
        return {"tries": tries}


def _counting_from(before: int, on_step: OnStep) -> OnStep:
    return lambda step: on_step(before + step)


def _save(tries: list[dict[str, Any]], path: Path) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(tries), encoding="utf-8")
    os.replace(temporary, path)
