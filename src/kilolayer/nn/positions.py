"""How a sequence model knows where a token stands: sinusoidal, learned or rotary positions."""

from __future__ import annotations

import difflib
from typing import NamedTuple

import torch
from torch import Tensor, nn

POSITIONS = ("sinusoidal", "learned", "rotary")
BASE_WAVELENGTH = 10_000.0
"""Vaswani et al. 2017, section 3.5; RoPE keeps it."""


def sinusoids(num_positions: int, width: int, device: torch.device | None = None) -> Tensor:
    """``sin(p / 10000^(2i/width))`` in the even columns, the cosine in the odd ones.

    Shape: ``(num_positions, width)``, float32.

    Reference: Vaswani et al. 2017, arXiv:1706.03762, section 3.5.
    """
    angles = _angles(num_positions, width, device)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)


def _angles(num_positions: int, width: int, device: torch.device | None) -> Tensor:
    # In float64: at position 10,000 a float32 angle is already off by a thousandth.
    steps = torch.arange(0, width, 2, dtype=torch.float64, device=device)
    places = torch.arange(num_positions, dtype=torch.float64, device=device)
    return torch.outer(places, BASE_WAVELENGTH ** (-steps / width)).float()


class SinusoidalPositions(nn.Module):
    """``x + sinusoids``; no parameters, any length.

    Shape: ``(batch, length, width) -> (batch, length, width)``.

    Raises:
        ValueError: an odd width.
    """

    def __init__(self, width: int):
        super().__init__()
        if width % 2:
            raise ValueError(f"sinusoidal positions pair sines with cosines, so width must be even, got {width}")
        self.width = width
        self._table: Tensor | None = None

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        return x + self._rows(start + x.shape[1], x.device)[start:].to(x.dtype)

    def _rows(self, length: int, device: torch.device) -> Tensor:
        # Not a buffer: the table follows from the width, so it belongs in no checkpoint.
        if torch.compiler.is_compiling() or device.type == "meta":
            return sinusoids(length, self.width, device)
        if self._table is None or len(self._table) < length or self._table.device != device:
            self._table = sinusoids(length, self.width, device)
        return self._table[:length]


class LearnedPositions(nn.Module):
    """``x + weight[:length]``, one trained row per position.

    Shape: ``(batch, length, width) -> (batch, length, width)``.

    Raises:
        ValueError: a sequence longer than ``max_length``.
    """

    def __init__(self, max_length: int, width: int, *, std: float):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(max_length, width))
        self.init_std = std

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        length = start + x.shape[1]
        if length > len(self.weight):
            raise ValueError(
                f"a sequence of {length} tokens is longer than the {len(self.weight)} learned positions; cut the "
                f"sequence, build the model with max_length={length}, or use sinusoidal or rotary positions"
            )
        return x + self.weight[start:length]


class Rotation(NamedTuple):
    """Cosines and sines of rotary positions, each ``(length, head_width / 2)``."""

    cos: Tensor
    sin: Tensor

    def apply(self, x_BHTD: Tensor) -> Tensor:
        """Rotate the pairs ``(x_i, x_{i + D/2})`` by the angle of their position.

        Reference: Su et al. 2021, arXiv:2104.09864, eq. 34, with the halves paired as GPT-NeoX pairs them.
        """
        first, second = x_BHTD.chunk(2, dim=-1)
        cos, sin = self.cos.to(x_BHTD.dtype), self.sin.to(x_BHTD.dtype)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def build_rotation(length: int, head_width: int, device: torch.device | None = None, *, start: int = 0) -> Rotation:
    """The rotation of the positions from ``start`` to ``length``.

    Raises:
        ValueError: an odd head width.
    """
    if head_width % 2:
        raise ValueError(f"rotary positions turn pairs, so the width of a head must be even, got {head_width}")
    angles = _angles(length, head_width, device)
    return Rotation(angles[start:].cos(), angles[start:].sin())


def check_positions(kind: str) -> None:
    """Raises ``ValueError`` unless ``kind`` is one of :data:`POSITIONS`; the nearest name is suggested."""
    if kind not in POSITIONS:
        nearest = difflib.get_close_matches(kind, POSITIONS, n=1)
        hint = f"did you mean {nearest[0]!r}?" if nearest else f"known: {', '.join(POSITIONS)}"
        raise ValueError(f"unknown positions {kind!r}; {hint}")
