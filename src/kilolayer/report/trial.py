"""A remedy that was tried: the loss without it and with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False)
class TrialView:
    """One remedy as people look at it.

    Args:
        name: what was changed, such as ``"pre-ln with final norm"``.
        loss_before: loss at the end without the change; ``None`` where it was not finite.
        loss_after: loss at the end with the change; ``None`` likewise.
        helped: whether the change is called a remedy; ``None`` where nobody judged.
        curves: label -> loss of each step from step 0 on, such as ``{"before": ..., "after": ...}``; a loss
            that was not finite is NaN.
        note: what else there is to say.

    Raises:
        ValueError: a curve that is not one loss per step.

    Examples:
        >>> trial = TrialView("deepnorm", 3.42, 0.02, True, {"before": [3.4, 3.42], "after": [3.4, 0.02]})
        >>> trial.curves["after"].tolist()
        [3.4, 0.02]
    """

    name: str
    loss_before: float | None
    loss_after: float | None
    helped: bool | None = None
    curves: Mapping[str, np.ndarray | Sequence[float]] = field(default_factory=dict)
    note: str = ""

    def __post_init__(self) -> None:
        curves = {str(label): np.asarray(losses, dtype=np.float64) for label, losses in self.curves.items()}
        for label, losses in curves.items():
            if losses.ndim != 1:
                raise ValueError(f"curve {label!r} of a trial has shape {losses.shape}; give one loss per step")
        object.__setattr__(self, "curves", curves)

    def to_dict(self) -> dict[str, Any]:
        """The trial as a dictionary of plain values and arrays."""
        return {
            "name": self.name,
            "loss_before": self.loss_before,
            "loss_after": self.loss_after,
            "helped": self.helped,
            "note": self.note,
            "curves": dict(self.curves),
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> TrialView:
        """Read what :meth:`to_dict` wrote, or any mapping with its names; unknown names are ignored.

        A loss of ``None`` in a curve is NaN: JSON knows no other way to say so.
        """
        curves = {
            label: [np.nan if loss is None else float(loss) for loss in losses]
            for label, losses in dict(fields.get("curves") or {}).items()
        }
        helped = fields.get("helped")
        return cls(
            str(fields["name"]),
            _loss(fields.get("loss_before")),
            _loss(fields.get("loss_after")),
            None if helped is None else bool(helped),
            curves,
            str(fields.get("note") or ""),
        )


def _loss(value: Any) -> float | None:
    return None if value is None else float(value)
