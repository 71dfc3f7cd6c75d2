"""An initialisation plan: which parameter gets which fill, at which standard deviation, and why."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

FILLS = ("normal", "zeros", "ones")


@dataclass(frozen=True)
class InitRow:
    """One line of a plan; ``std`` is 0 for constant fills."""

    parameter: str
    fill: str
    std: float
    reason: str

    def __post_init__(self) -> None:
        if self.fill not in FILLS:
            raise ValueError(f"fill {self.fill!r} is unknown; use one of {', '.join(FILLS)}")
        if not (math.isfinite(self.std) and self.std >= 0):
            raise ValueError(f"std of {self.parameter} must be finite and >= 0, got {self.std}")


@dataclass(frozen=True)
class InitPlan:
    """Rows for the parameters of one model, in the order in which they are drawn."""

    rows: tuple[InitRow, ...]

    def std(self, parameter: str) -> float:
        """The planned standard deviation of one parameter."""
        for row in self.rows:
            if row.parameter == parameter:
                return row.std
        raise KeyError(f"the plan has no row for {parameter!r}")

    def render(self) -> str:
        """The plan as text, one parameter a line."""
        width = max(len(row.parameter) for row in self.rows)
        lines = [
            f"{row.parameter:<{width}}  {row.fill:<6}  {row.std:<10.4g}  {row.reason}" for row in self.rows
        ]
        return "\n".join(lines)


@torch.no_grad()
def apply_init(model: nn.Module, plan: InitPlan, *, generator: torch.Generator | None = None) -> list[str]:
    """Fill a model's parameters in place, in the plan's order, and return their names.

    The draws depend on the generator and the plan alone, never on how the model was built.

    Raises:
        ValueError: the plan names a parameter the model lacks, or leaves one of the model's out.
    """
    parameters = dict(model.named_parameters())
    _check_coverage(parameters, (row.parameter for row in plan.rows))
    for row in plan.rows:
        tensor = parameters[row.parameter]
        if row.fill == "normal":
            tensor.normal_(0.0, row.std, generator=generator)
        else:
            tensor.fill_(float(row.fill == "ones"))
    return [row.parameter for row in plan.rows]


def _check_coverage(parameters: dict[str, nn.Parameter], planned: Iterable[str]) -> None:
    planned = list(planned)
    missing = [name for name in planned if name not in parameters]
    if missing:
        raise ValueError(
            f"the plan names parameters the model lacks: {', '.join(missing[:3])}; plan this model anew"
        )
    left_out = sorted(set(parameters) - set(planned))
    if left_out:
        raise ValueError(f"the plan leaves out {', '.join(left_out[:3])}; every parameter needs a row")
