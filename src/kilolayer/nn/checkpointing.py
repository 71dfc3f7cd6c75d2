"""Activation checkpointing by segments: keep the input of each segment, compute the rest again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TypeVar

from torch import Tensor
from torch.utils.checkpoint import checkpoint

Part = TypeVar("Part")
Step = Callable[[Tensor], Tensor]
Segment = int | Literal["auto"] | None

KEPT_PER_LAYER = 11
"""Numbers a lean layer keeps per token and channel: stream, query, key, value, two mixes, a sum, hidden times 4."""


def segment_length(num_layers: int, every: Segment) -> int:
    """Layers per segment; ``"auto"`` keeps least, ``sqrt(num_layers / 11)``.

    L layers in segments of s keep L/s segment inputs, and 11 s numbers more while one segment is computed again.

    Raises:
        ValueError: fewer than one layer per segment.

    Examples:
        >>> segment_length(1000, "auto")
        10
    """
    if every == "auto":
        return max(1, round(math.sqrt(num_layers / KEPT_PER_LAYER)))
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise ValueError(f"checkpoint_every must be None, 'auto' or a number of layers >= 1, got {every!r}")
    return every


def check_segment(every: Segment) -> Segment:
    """The option itself, once it has been found to be usable.

    Raises:
        ValueError: fewer than one layer per segment.
    """
    if every is not None:
        segment_length(1, every)
    return every


def segments(parts: Sequence[Part], every: Segment) -> Iterator[Sequence[Part]]:
    """The parts in groups of :func:`segment_length`, the last one perhaps shorter."""
    length = segment_length(len(parts), every)
    for first in range(0, len(parts), length):
        yield parts[first : first + length]


def run_segments(steps: Sequence[Step], x: Tensor, *, every: Segment, has_dropout: bool) -> Tensor:
    """``x`` through every step in turn, in checkpointed segments of ``every`` steps.

    Without dropout there is no random state to restore, which saves its copies.
    """
    for segment in segments(steps, every):
        x = checkpoint(_run_segment, segment, x, use_reentrant=False, preserve_rng_state=has_dropout)
    return x


def _run_segment(segment: Sequence[Step], x: Tensor) -> Tensor:
    for step in segment:
        x = step(x)
    return x
