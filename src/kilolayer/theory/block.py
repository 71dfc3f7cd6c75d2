"""What theory needs to know of a block and of the head: numbers only."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kilolayer.theory.activations import get_activation

NORM_KINDS = ("layer", "rms", "batch")
NORM_SLOTS = ("pre", "inner", "end", "post")


@dataclass(frozen=True)
class Linear:
    """A random matrix with independent entries of mean 0; biases are 0."""

    weight_std: float
    fan_in: int
    fan_out: int


@dataclass(frozen=True)
class Norm:
    """A norm at the identity (gain 1, bias 0), its output times ``scale``."""

    kind: str
    scale: float = 1.0


@dataclass(frozen=True)
class Act:
    """An elementwise activation on ``width`` units."""

    activation: str
    width: int


Operation = Linear | Norm | Act


@dataclass(frozen=True)
class BlockSpec:
    """A block ``y = post_norm(skip_scale * x + branch_scale * f(x))``, or ``post_norm(branch_scale * f(x))``.

    ``f(x) = end_norm(W_m inner_norm(phi(... phi(W_1 [phi](norm_output_scale * pre_norm(x))))))``: one matrix per
    entry of ``weight_stds``, an activation between each two of them, norms only in the slots that
    ``norm_placement`` names. The tensor y is what predictions are about: for a chain of ``linear, relu`` blocks
    the tensor before the ReLU, so that such blocks have ``input_activated=True`` from the second on.

    Attributes:
        width: units of x and y.
        weight_stds: standard deviation of each matrix's entries.
        activation: a name from ``ACTIVATIONS``.
        has_skip: whether x is added to the branch.
        norm_placement: ``"none"``, or ``"pre"``, ``"inner"``, ``"end"``, ``"post"`` joined by ``+``.
        norm_kind: ``"layer"``, ``"rms"`` or ``"batch"``.
        skip_scale, branch_scale: factors at run time.
        input_activated: whether x passes the activation before the first matrix.
        hidden_width: units between the matrices; ``width`` when None.
        norm_output_scale: factor behind the ``"pre"`` norm.

    Raises:
        ValueError: a size below 1, a negative std, an unknown activation, placement or norm.

    Examples:
        >>> block = BlockSpec(width=256, weight_stds=((2 / 256) ** 0.5, (1 / 256) ** 0.5), norm_placement="post")
        >>> [type(operation).__name__ for operation in block.branch]
        ['Linear', 'Act', 'Linear']
    """

    width: int
    weight_stds: tuple[float, ...]
    activation: str = "relu"
    has_skip: bool = True
    norm_placement: str = "none"
    norm_kind: str = "layer"
    skip_scale: float = 1.0
    branch_scale: float = 1.0
    input_activated: bool = False
    hidden_width: int | None = None
    norm_output_scale: float = 1.0

    def __post_init__(self) -> None:
        for name in ("width", "hidden_width"):
            size = getattr(self, name)
            if size is not None and size < 1:
                raise ValueError(f"{name} must be >= 1, got {size}")
        if not self.weight_stds:
            raise ValueError("weight_stds is empty; give one standard deviation per matrix of the branch")
        for std in self.weight_stds:
            if not (math.isfinite(std) and std >= 0):
                raise ValueError(f"a weight std must be finite and >= 0, got {std}")
        get_activation(self.activation)
        if unknown := set(self.norm_slots) - set(NORM_SLOTS):
            raise ValueError(
                f"norm_placement {self.norm_placement!r} has no slot {min(unknown)!r}; use 'none', or "
                f"{', '.join(NORM_SLOTS)} joined by +"
            )
        _check_norm_kind(self.norm_kind)

    @property
    def norm_slots(self) -> tuple[str, ...]:
        """The slots that hold a norm, ``()`` for none."""
        return () if self.norm_placement == "none" else tuple(self.norm_placement.split("+"))

    @property
    def has_post_norm(self) -> bool:
        """Whether y itself comes out of a norm."""
        return "post" in self.norm_slots

    @property
    def branch(self) -> tuple[Operation, ...]:
        """The operations of f, in order."""
        hidden = self.width if self.hidden_width is None else self.hidden_width
        operations: list[Operation] = []
        if "pre" in self.norm_slots:
            operations.append(Norm(self.norm_kind, self.norm_output_scale))
        last = len(self.weight_stds) - 1
        for index, std in enumerate(self.weight_stds):
            fan_in = hidden if index else self.width
            if index or self.input_activated:
                operations.append(Act(self.activation, fan_in))
            if index == last and "inner" in self.norm_slots:
                operations.append(Norm(self.norm_kind))
            operations.append(Linear(std, fan_in, self.width if index == last else hidden))
        if "end" in self.norm_slots:
            operations.append(Norm(self.norm_kind))
        return tuple(operations)


@dataclass(frozen=True)
class HeadSpec:
    """What follows the last block: ``logits = W [phi]([norm](y))``.

    Attributes:
        width: units of y.
        num_outputs: logits.
        weight_std: standard deviation of W's entries.
        norm_kind: kind of the final norm, None for none.
        input_activated: whether y passes the activation first, as behind a chain of ``linear, relu`` blocks.
        activation: a name from ``ACTIVATIONS``.

    Raises:
        ValueError: a size below 1, a negative std, an unknown activation or norm.

    Examples:
        >>> HeadSpec(width=256, num_outputs=10, weight_std=1 / 16).norm_kind is None
        True
    """

    width: int
    num_outputs: int
    weight_std: float
    norm_kind: str | None = None
    input_activated: bool = False
    activation: str = "relu"

    def __post_init__(self) -> None:
        for name in ("width", "num_outputs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}")
        if not (math.isfinite(self.weight_std) and self.weight_std >= 0):
            raise ValueError(f"a weight std must be finite and >= 0, got {self.weight_std}")
        get_activation(self.activation)
        if self.norm_kind is not None:
            _check_norm_kind(self.norm_kind)

    @property
    def operations(self) -> tuple[Operation, ...]:
        """Norm, activation and matrix, those that are there, in order."""
        operations: list[Operation] = [] if self.norm_kind is None else [Norm(self.norm_kind)]
        if self.input_activated:
            operations.append(Act(self.activation, self.width))
        return (*operations, Linear(self.weight_std, self.width, self.num_outputs))


def is_homogeneous(blocks: tuple[BlockSpec, ...], head: HeadSpec | None = None) -> bool:
    """Whether scaling the stream scales every later tensor alike: no norm, and homogeneous activations."""
    operations = [operation for block in blocks for operation in block.branch]
    operations += [] if head is None else head.operations
    if any(block.has_post_norm for block in blocks):
        return False
    return not any(isinstance(one, Norm) for one in operations) and all(
        get_activation(one.activation).is_homogeneous for one in operations if isinstance(one, Act)
    )


def has_norms(blocks: tuple[BlockSpec, ...]) -> bool:
    """Whether any block holds a norm."""
    return any(block.norm_slots for block in blocks)


def _check_norm_kind(norm_kind: str) -> None:
    if norm_kind not in NORM_KINDS:
        raise ValueError(f"norm_kind {norm_kind!r} is unknown; use one of {', '.join(NORM_KINDS)}")
