"""What a layer sees besides the stream."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from kilolayer.nn.cache import AttentionCache
from kilolayer.nn.masks import NO_MASK, AttentionMask
from kilolayer.nn.positions import Rotation


class LayerContext(NamedTuple):
    """Memory to attend to, masks that are merged already, the rotation of rotary positions, and a cache."""

    memory: Tensor | None = None
    mask: AttentionMask = NO_MASK
    memory_mask: AttentionMask = NO_MASK
    rotation: Rotation | None = None
    cache: AttentionCache | None = None


NO_CONTEXT = LayerContext()
