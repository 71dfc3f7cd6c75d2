"""One run of ``kilolayer lab chain``: a part of the theory of deep chains, measured on one seed's draws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple


class Key(NamedTuple):
    """What one figure is of.

    Attributes:
        case: the network, or the layer.
        quantity: what is measured.
        at: the depth, width or batch size it is measured at, see :attr:`ChainPart.unit`.
    """

    case: str
    quantity: str
    at: int


class Expected(NamedTuple):
    """What theory says of a figure: a value, and where one draw of the weights scatters, the ends of its 95 % band."""

    value: float
    low: float | None = None
    high: float | None = None


Figures = dict[Key, float]
Expectations = dict[Key, Expected]


@dataclass(frozen=True, kw_only=True)
class ChainRun:
    """Everything that decides a run's numbers.

    Attributes:
        part: name of a part.
        num_blocks: depth of its networks.
        width: units per block, where the part does not vary it.
        seed: of its draws.
    """

    part: str
    num_blocks: int = 64
    width: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        for name, low in (("num_blocks", 2), ("width", 8), ("seed", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise ValueError(f"{name} must be a whole number >= {low}, got {value!r}")

    @property
    def folder_name(self) -> str:
        """Tells the runs of one experiment apart."""
        return f"{self.part}-seed{self.seed}"

    @property
    def num_steps(self) -> int:
        """One piece of work."""
        return 1

    def depths(self) -> list[int]:
        """1, 4, 16, ... blocks, and all of them."""
        powers = [4**power for power in range(32) if 4**power < self.num_blocks]
        return [*powers, self.num_blocks]


@dataclass(frozen=True)
class ChainPart:
    """A part of the theory: what it predicts, and how that is measured.

    Attributes:
        name: as ``--part`` takes it.
        title: of its tables.
        unit: what :attr:`Key.at` counts.
        measure: the figures of one seed.
        predict: what theory says; figures it says nothing of are left out.
        column_of, row_of: where a figure stands in the table of its quantity.
    """

    name: str
    title: str
    unit: str
    measure: Callable[[ChainRun], Figures]
    predict: Callable[[ChainRun], Expectations]
    column_of: Callable[[Key], str] = lambda key: str(key.at)
    row_of: Callable[[Key], str] = lambda key: key.case
