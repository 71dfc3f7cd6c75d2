"""The quantities a report draws over steps and depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from kilolayer.report.view import RunView


@dataclass(frozen=True)
class Quantity:
    """One statistic of one role, drawn over steps and depth.

    ``where`` says which sites stand for the depth: the stream, or the weight matrices. ``log`` tells
    positive quantities that span decades from those on a linear scale.
    """

    role: str
    stat: str
    title: str
    meaning: str
    where: Literal["stream", "weights"]
    log: bool = True

    @property
    def key(self) -> str:
        """Identifier in files: role and statistic."""
        return f"{self.role}-{self.stat}"


QUANTITIES = (
    Quantity(
        "activation", "rms", "Activation RMS",
        "Root mean square of the signal after each block.", "stream",
    ),
    Quantity(
        "param_grad", "l2_norm", "Gradient norm",
        "L2 norm of the loss gradient of each weight matrix.", "weights",
    ),
    Quantity(
        "update", "update_ratio", "Update ratio",
        "L2 norm of one optimizer step's change over that of the weight matrix it changes.", "weights",
    ),
)  # fmt: skip
"""The three curves every report draws, in reading order."""

LINEAR_STATS = ("zero_fraction", "sample_cosine", "nonfinite")
PARAMETER_ROLES = ("param", "param_grad", "update")


def quantities_of(runs: Sequence[RunView]) -> tuple[Quantity, ...]:
    """:data:`QUANTITIES`, and one more for each other statistic that a run has a prediction for."""
    chosen = {(quantity.role, quantity.stat): quantity for quantity in QUANTITIES}
    for run in runs:
        for prediction in run.predictions:
            pair = (prediction.role, prediction.stat)
            chosen.setdefault(pair, _predicted_quantity(*pair))
    return tuple(chosen.values())


def _predicted_quantity(role: str, stat: str) -> Quantity:
    words = f"{role} {stat}".replace("_", " ")
    return Quantity(
        role,
        stat,
        words[:1].upper() + words[1:],
        f"Statistic {stat} of role {role}.",
        "weights" if role in PARAMETER_ROLES else "stream",
        log=stat not in LINEAR_STATS,
    )
