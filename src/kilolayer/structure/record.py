"""What one forward pass did: operations on values, and the module calls they happened in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch

Source = Literal["input", "parameter", "buffer", "unknown"]
"""Where a value comes from that no operation of the pass made; ``unknown``: a tensor the model holds elsewhere."""

MERGE = "merge"
"""Operation that stands for a write through another view of the same memory; no such operation ran."""


@dataclass(frozen=True)
class Ref:
    """Stands for a tensor in the arguments of an operation: the number of its value."""

    value: int


@dataclass(slots=True)
class Value:
    """One tensor at one moment: a write in place makes a new value.

    ``tensor`` is kept for what the model holds (parameters and buffers), never for activations.
    ``mean`` is that of a small tensor that the pass made and no model input had a part in. A whole view has none of
    its own: matrices are transposed by the thousand.
    """

    operation: int | None
    output: int
    shape: tuple[int, ...]
    is_float: bool
    depends_on_input: bool
    source: Source | None = None
    name: str | None = None
    tensor: torch.Tensor | None = None
    mean: float | None = None


@dataclass(slots=True)
class Operation:
    """One operation as it ran: name without namespace, overload and the underscore of in-place variants."""

    name: str
    namespace: str
    arguments: dict[str, Any]
    outputs: list[int]
    call: int
    is_random: bool = False


@dataclass(slots=True)
class Call:
    """One run of one module: ``number`` counts the runs of the module, from 0."""

    path: str
    number: int
    parent: int | None
    first_operation: int
    last_operation: int = -1
    input: int | None = None
    output: int | None = None


@dataclass
class Record:
    """Everything one forward pass did, in order."""

    operations: list[Operation] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
