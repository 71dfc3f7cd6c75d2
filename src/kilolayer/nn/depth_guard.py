"""The depth a skip scale came from travels in the checkpoint, and another depth is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from kilolayer.schemes import Depth, Scheme


class DepthGuard(nn.Module):
    """An int64 buffer ``num_layers = [encoder layers, decoder layers]`` that must agree with a loaded one.

    Raises:
        ValueError: on loading a checkpoint whose scales come from another depth, or, unless ``strict=False``,
            one that does not say which depth its scales come from.

    Example:
        >>> DepthGuard(Depth(encoder_layers=12)).state_dict()["num_layers"].tolist()
        [12, 0]
    """

    num_layers: Tensor

    def __init__(self, depth: Depth):
        super().__init__()
        self.depth = depth
        self.register_buffer("num_layers", self._as_tensor(torch.device("cpu")))

    def _as_tensor(self, device: torch.device) -> Tensor:
        counts = [self.depth.encoder_layers, self.depth.decoder_layers]
        return torch.tensor(counts, dtype=torch.int64, device=device)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> DepthGuard:
        super()._apply(fn, recurse)
        # `to_empty` leaves memory as it finds it; the depth is known without a checkpoint.
        if self.num_layers.device.type != "meta":
            self.num_layers = self._as_tensor(self.num_layers.device)
        return self

    def _load_from_state_dict(
        self, state_dict: dict[str, Tensor], prefix: str, local_metadata: dict[str, Any], strict: bool, *lists: Any
    ) -> None:
        stored = state_dict.get(f"{prefix}num_layers")
        if stored is None:
            if strict:
                raise ValueError(self._missing(f"{prefix}num_layers"))
            return
        found = tuple(int(count) for count in stored.tolist())
        if found != (self.depth.encoder_layers, self.depth.decoder_layers):
            raise ValueError(self._mismatch(found))
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, *lists)

    def _missing(self, key: str) -> str:
        return (
            f"the checkpoint has no {key!r}: it does not say which depth its skip scales come from, and this model has "
            f"{describe_depth(self.depth.encoder_layers, self.depth.decoder_layers)}. A post-LN checkpoint computes "
            "another function here; convert the model that wrote it with kilolayer.plan_conversion. If the "
            "checkpoint is known to be of this depth and scheme, load it with strict=False"
        )

    def _mismatch(self, found: tuple[int, ...]) -> str:
        return (
            f"the checkpoint's skip scales come from {describe_depth(*found)}, this model has "
            f"{describe_depth(self.depth.encoder_layers, self.depth.decoder_layers)}: the same weights would compute "
            "another function. Load it at its own depth and convert that model with kilolayer.plan_conversion"
        )

    def extra_repr(self) -> str:
        return describe_depth(self.depth.encoder_layers, self.depth.decoder_layers)


def build_depth_guard(scheme: Scheme, depth: Depth) -> DepthGuard | None:
    """A guard where the function a trained network computes depends on the depth it was built for."""
    return DepthGuard(depth) if scheme.uses_depth == "forward" else None


def describe_depth(encoder_layers: int, decoder_layers: int) -> str:
    """``"12 encoder layers"``, ``"6 encoder and 6 decoder layers"``."""
    if encoder_layers and decoder_layers:
        return f"{encoder_layers} encoder and {decoder_layers} decoder layers"
    return f"{encoder_layers} encoder layers" if encoder_layers else f"{decoder_layers} decoder layers"
