"""The site table: what is known of each place a number was measured at."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

Scale = float | Literal["learned"]

KINDS = ("linear", "norm", "activation", "sum", "branch", "input", "output", "weight", "parameter")
"""What a site is: a tensor (`linear`, `norm`, `activation`, `sum`, `branch`, `input`, `output`) or a parameter
(`weight`: a matrix; `parameter`: anything else)."""


@dataclass(frozen=True)
class Site:
    """One place where numbers are measured, and what the model is there.

    ``name`` follows ``path[#call][:sum|:out|:in]``; a parameter's site is its fully qualified name.
    ``order`` counts in order of execution. ``block_index`` is 0-based, ``None`` outside the blocks; a block is a
    residual branch, or where there are none a matrix with what follows it.
    ``stream`` marks the one site per block that stands for the signal along the depth: the residual sum
    (after its norm under post-norm), or, in a block without skip, the pre-activation.
    ``norm_placement`` and the scales describe the residual branch that ends at the site (``"none"`` and
    ``None`` where there is no norm and no skip).

    Raises:
        ValueError: unknown ``kind``.

    Examples:
        >>> site = Site("layers.0.norm1:out", "layers.0.norm1", "norm", 3, branch_index=0, stream=True)
        >>> site.name, site.branch_index, site.norm_placement
        ('layers.0.norm1:out', 0, 'none')
    """

    name: str
    path: str
    kind: str
    order: int
    block_index: int | None = None
    branch_index: int | None = None
    chain: int | None = None
    stream: bool = False
    norm_placement: str = "none"
    norm_kind: str | None = None
    skip_scale: Scale | None = None
    branch_scale: Scale | None = None
    init_gain: float | None = None
    activation: str | None = None
    shape: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"site kind {self.kind!r} is unknown; use one of {', '.join(KINDS)}")

    def to_dict(self) -> dict[str, Any]:
        """The site as a JSON-ready dictionary."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Site:
        """Build a site from a dictionary; unknown keys (of a newer minor version) are ignored."""
        known = {field.name for field in dataclasses.fields(cls)}
        values = {key: value for key, value in fields.items() if key in known}
        if values.get("shape") is not None:
            values["shape"] = tuple(values["shape"])
        return cls(**values)
