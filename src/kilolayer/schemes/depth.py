"""How deep a network is: layers and residual branches, stack by stack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Stack = Literal["encoder", "decoder"]
LARGEST_COUNT = 10**9
"""No count goes further: beyond it closed forms leave float64 and loops do not end."""

STACKS: tuple[Stack, ...] = ("encoder", "decoder")


@dataclass(frozen=True)
class Depth:
    """How deep a network is, stack by stack.

    A network with one stack uses ``encoder_layers`` or ``decoder_layers`` alone: the coefficients are the
    same. Branches (residual sums) per layer default to 2 (self-attention, feed-forward), and to 3 in a
    decoder that also attends to an encoder. A deep MLP with one branch per block has
    ``Depth(encoder_layers=blocks, encoder_branches_per_layer=1)``.

    Raises:
        TypeError: a count that is not an int.
        ValueError: a negative number of layers, no layer at all, fewer than one branch per layer, or a count past
            all sense.

    Examples:
        >>> depth = Depth(encoder_layers=500, decoder_layers=500)
        >>> depth.num_branches("encoder"), depth.num_branches("decoder")
        (1000, 1500)
    """

    encoder_layers: int = 0
    decoder_layers: int = 0
    encoder_branches_per_layer: int = 2
    decoder_branches_per_layer: int | None = None

    def __post_init__(self) -> None:
        check_count("encoder_layers", self.encoder_layers, at_least=0)
        check_count("decoder_layers", self.decoder_layers, at_least=0)
        check_count("encoder_branches_per_layer", self.encoder_branches_per_layer, at_least=1)
        if self.decoder_branches_per_layer is not None:
            check_count("decoder_branches_per_layer", self.decoder_branches_per_layer, at_least=1)
        if self.encoder_layers + self.decoder_layers == 0:
            raise ValueError("a network needs at least one layer; got encoder_layers=0 and decoder_layers=0")

    def num_layers(self, stack: Stack) -> int:
        """Layers (blocks) of a stack."""
        return self.encoder_layers if _checked(stack) == "encoder" else self.decoder_layers

    def branches_per_layer(self, stack: Stack) -> int:
        """Residual sums per layer of a stack."""
        if _checked(stack) == "encoder":
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

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """The stacks that have layers."""
        return tuple(stack for stack in STACKS if self.num_layers(stack))

    @property
    def total_branches(self) -> int:
        """Residual sums of the whole network."""
        return sum(self.num_branches(stack) for stack in STACKS)

    def layer_index(self, stack: Stack, branch_index: int) -> int:
        """The 0-based layer a branch belongs to."""
        return branch_index // self.branches_per_layer(stack)

    def is_last_of_layer(self, stack: Stack, branch_index: int) -> bool:
        """Whether a branch is the last of its layer."""
        per_layer = self.branches_per_layer(stack)
        return branch_index % per_layer == per_layer - 1

    def is_cross_attention(self, stack: Stack, branch_index: int) -> bool:
        """Whether a branch attends to the encoder: the middle one of three in a decoder that has one."""
        if stack != "decoder" or not self.is_encoder_decoder or self.branches_per_layer(stack) != 3:
            return False
        return branch_index % 3 == 1


def check_count(name: str, value: object, *, at_least: int) -> None:
    """Refuse what is no count.

    Raises:
        TypeError: not an int.
        ValueError: less than ``at_least``, or more than :data:`LARGEST_COUNT`.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {value!r}")
    if value < at_least:
        raise ValueError(f"{name} must be >= {at_least}, got {value}")
    if value > LARGEST_COUNT:
        raise ValueError(f"{name} must be at most {LARGEST_COUNT:,}, got a number of {len(str(value))} digits")


def _checked(stack: Stack) -> Stack:
    if stack not in STACKS:
        raise ValueError(f"unknown stack {stack!r}; use 'encoder' or 'decoder'")
    return stack
