"""A trial: what an edit did to the loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kilolayer.diagnosis.finding import finite_or_none


@dataclass(frozen=True)
class Trial:
    """One set-up trained as built and as edited, from the same seed, on the same data, for as many steps.

    Attributes:
        name: the edit.
        loss_before, loss_after: the last losses as built and as edited; NaN where a run was not finite.
        helped: whether the edit made the set-up learn.
        steps: steps of each run.
        losses_before, losses_after: the losses of each step.
        note: what else there is to say, such as why an edit could not be made.

    Examples:
        >>> Trial("warm-up", loss_before=3.42, loss_after=3.40, helped=False).helped
        False
    """

    name: str
    loss_before: float
    loss_after: float
    helped: bool
    steps: int = 0
    losses_before: tuple[float, ...] = ()
    losses_after: tuple[float, ...] = ()
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The trial as a JSON-ready dictionary; numbers that are not finite become ``None``."""
        return {
            "name": self.name,
            "loss_before": finite_or_none(self.loss_before),
            "loss_after": finite_or_none(self.loss_after),
            "helped": self.helped,
            "steps": self.steps,
            "note": self.note,
            "curves": {
                "before": [finite_or_none(loss) for loss in self.losses_before],
                "after": [finite_or_none(loss) for loss in self.losses_after],
            },
        }
