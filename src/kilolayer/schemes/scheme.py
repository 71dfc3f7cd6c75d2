"""A residual scheme: what depth does to scale, as a pure function of depth and position."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Stack = Literal["encoder", "decoder"]


@dataclass(frozen=True)
class Depth:
    """How deep a network is, stack by stack.

    A network with one stack uses ``encoder_layers`` or ``decoder_layers`` alone: the coefficients are the
    same. Branches (residual sums) per layer default to 2 (self-attention, feed-forward), and to 3 in a
    decoder that also attends to an encoder. A deep MLP with one branch per block has
    ``Depth(encoder_layers=blocks, encoder_branches_per_layer=1)``.
    """

    encoder_layers: int = 0
    decoder_layers: int = 0
    encoder_branches_per_layer: int = 2
    decoder_branches_per_layer: int | None = None

    def __post_init__(self) -> None:
        for name in ("encoder_layers", "decoder_layers"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name} must be an int, got {value!r}")
            if value < 0:
                raise ValueError(f"{name} must be >= 0, got {value}")
        if self.encoder_layers + self.decoder_layers == 0:
            raise ValueError("a network needs at least one layer; got encoder_layers=0 and decoder_layers=0")

    def num_layers(self, stack: Stack) -> int:
        """Layers (blocks) of a stack."""
        return self.encoder_layers if stack == "encoder" else self.decoder_layers

    def branches_per_layer(self, stack: Stack) -> int:
        """Residual sums per layer of a stack."""
        if stack == "encoder":
            return self.encoder_branches_per_layer
        if self.decoder_branches_per_layer is not None:
            return self.decoder_branches_per_layer
        return 3 if self.encoder_layers else 2

    def num_branches(self, stack: Stack) -> int:
        """Residual sums of a stack."""
        return self.num_layers(stack) * self.branches_per_layer(stack)

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether both stacks are there."""
        return self.encoder_layers > 0 and self.decoder_layers > 0


@dataclass(frozen=True)
class BranchScales:
    """What one residual branch gets.

    ``skip_scale`` multiplies the skip and ``branch_scale`` the branch at run time; ``init_gain`` multiplies
    the base initialisation of the branch's scaled matrices, at initialisation only; ``last_init_gain``
    multiplies the branch's last matrix on top. ``norm_placement``: ``"none"``, or ``"pre"``, ``"inner"``,
    ``"end"``, ``"post"`` joined by ``+``. ``has_skip`` is false where blocks are merely chained.
    ``learned`` says that ``branch_scale`` is the initial value of a trained parameter.
    """

    norm_placement: str = "none"
    skip_scale: float = 1.0
    branch_scale: float = 1.0
    init_gain: float = 1.0
    last_init_gain: float = 1.0
    has_skip: bool = True
    learned: bool = False


@dataclass(frozen=True)
class Scheme:
    """A named rule ``scales(depth, stack, branch_index) -> BranchScales``.

    ``counts`` names what the formula counts (``"branches"``, ``"layers"`` or ``"nothing"``);
    ``final_norm`` says whether the stack ends in a norm of its own.
    """

    name: str
    formula: str
    counts: Literal["branches", "layers", "nothing"]
    reference: str
    scales: Callable[[Depth, Stack, int], BranchScales]
    final_norm: bool = False
    rule: str | None = None

    def at(self, depth: Depth, branch_index: int, stack: Stack = "encoder") -> BranchScales:
        """The scales of one branch.

        Raises:
            IndexError: the stack has no such branch.
        """
        num_branches = depth.num_branches(stack)
        if not 0 <= branch_index < num_branches:
            raise IndexError(f"branch_index {branch_index} is out of range: the {stack} has {num_branches} branches")
        return self.scales(depth, stack, branch_index)
