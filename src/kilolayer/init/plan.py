"""An initialisation plan: which parameter gets which fill, at which standard deviation, and why."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from kilolayer.representation import repr_html, repr_short

FILLS = ("normal", "orthogonal", "zeros", "ones", "constant", "keep")


@dataclass(frozen=True)
class InitRow:
    """One line of a plan.

    Attributes:
        parameter: fully qualified name.
        fill: ``"normal"`` with mean 0, ``"orthogonal"``, ``"zeros"``, ``"ones"``, ``"constant"``, or ``"keep"``
            for a parameter the plan leaves as it finds it.
        std: standard deviation of the entries; 0 for constant fills.
        reason: why, in a few words.
        part: first row and the row behind the last one, where a packed matrix has several plan rows.
        value: of a ``"constant"`` fill.

    Raises:
        ValueError: an unknown fill, or a std that is negative or not finite.
    """

    parameter: str
    fill: str
    std: float
    reason: str
    part: tuple[int, int] | None = None
    value: float = 0.0

    def __post_init__(self) -> None:
        if self.fill not in FILLS:
            raise ValueError(f"fill {self.fill!r} is unknown; use one of {', '.join(FILLS)}")
        if not (math.isfinite(self.std) and self.std >= 0):
            raise ValueError(f"std of {self.parameter} must be finite and >= 0, got {self.std}")


@dataclass(frozen=True)
class InitPlan:
    """Rows for the parameters of one model, in the order in which they are drawn."""

    rows: tuple[InitRow, ...]

    __repr__ = repr_short
    _repr_html_ = repr_html

    def std(self, parameter: str, matrix_row: int = 0) -> float:
        """The planned standard deviation of one parameter, of a packed one in one of its rows."""
        for row in self.rows:
            if row.parameter == parameter and (row.part is None or row.part[0] <= matrix_row < row.part[1]):
                return row.std
        raise KeyError(f"the plan has no row for {parameter!r}")

    def render(self) -> str:
        """The plan as text, one parameter a line."""
        names = [_name_with_part(row) for row in self.rows]
        width = max((len(name) for name in names), default=0)
        lines = [
            f"{name:<{width}}  {row.fill:<10}  {_spread(row):<10}  {row.reason}"
            for name, row in zip(names, self.rows, strict=True)
        ]
        return "\n".join(lines)


def _name_with_part(row: InitRow) -> str:
    return row.parameter if row.part is None else f"{row.parameter}[{row.part[0]}:{row.part[1]}]"


def _spread(row: InitRow) -> str:
    if row.fill == "keep":
        return "-"
    return f"={row.value:.4g}" if row.fill == "constant" else f"{row.std:.4g}"


@torch.no_grad()
def apply_init(model: nn.Module, plan: InitPlan, *, generator: torch.Generator | None = None) -> list[str]:
    """Fill a model's parameters in place, in the plan's order, and return their names.

    The draws depend on the generator and the plan alone, never on how the model was built.

    Raises:
        ValueError: the plan names a parameter the model lacks, or leaves one of the model's out.

    Examples:
        >>> import torch, kilolayer as kl
        >>> layer = kl.nn.TransformerEncoderLayer(8, 2, 16, scheme="deepnorm", num_layers=24)
        >>> plan = kl.init.plan_init(kl.nn.TransformerEncoder(layer, 24), "deepnorm")
        >>> len(apply_init(kl.nn.TransformerEncoder(layer, 24), plan, generator=torch.Generator().manual_seed(0)))
        288
    """
    parameters = dict(model.named_parameters())
    _check_coverage(parameters, (row.parameter for row in plan.rows))
    for row in plan.rows:
        tensor = parameters[row.parameter]
        _fill(tensor if row.part is None else tensor[slice(*row.part)], row, generator)
    return list(dict.fromkeys(row.parameter for row in plan.rows))


def _fill(tensor: torch.Tensor, row: InitRow, generator: torch.Generator | None) -> None:
    if tensor.is_meta:  # no values to fill, and drawing none takes torch milliseconds
        return
    if row.fill == "normal":
        tensor.normal_(0.0, row.std, generator=generator)
    elif row.fill == "orthogonal":
        # An orthogonal matrix of n rows and m columns has entries of RMS 1 / sqrt(max(n, m)).
        gain = row.std * math.sqrt(max(tensor.shape[0], tensor[0].numel()))
        # In float32, as half precision has no QR decomposition.
        drawn = torch.empty_like(tensor, dtype=torch.promote_types(tensor.dtype, torch.float32))
        tensor.copy_(nn.init.orthogonal_(drawn, gain=gain, generator=generator))
    elif row.fill != "keep":
        tensor.fill_({"zeros": 0.0, "ones": 1.0}.get(row.fill, row.value))


def _check_coverage(parameters: dict[str, nn.Parameter], planned: Iterable[str]) -> None:
    planned = list(planned)
    missing = [name for name in planned if name not in parameters]
    if missing:
        raise ValueError(f"the plan names parameters the model lacks: {', '.join(missing[:3])}; plan this model anew")
    left_out = sorted(set(parameters) - set(planned))
    if left_out:
        raise ValueError(f"the plan leaves out {', '.join(left_out[:3])}; every parameter needs a row")
