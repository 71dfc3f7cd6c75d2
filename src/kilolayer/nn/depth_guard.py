"""The depth a skip scale came from travels in the checkpoint, and another depth is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from kilolayer.schemes import Depth, Scheme


class DepthGuard(nn.Module):
    """An int64 buffer ``num_layers = [encoder layers, decoder layers]``, the depth that scales came from.

    Examples:
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

    def extra_repr(self) -> str:
        return describe_depth(self.depth.encoder_layers, self.depth.decoder_layers)


def guard_depth(module: nn.Module, scheme: Scheme, depth: Depth) -> DepthGuard | None:
    """The guard of a layer or stack, to become its ``depth_guard``; loading another depth into it then raises.

    ``None`` where the function a trained network computes does not depend on the depth it was built for.
    """
    if scheme.uses_depth != "forward":
        return None
    module.register_load_state_dict_pre_hook(check_loaded_depth)
    return DepthGuard(depth)


def check_loaded_depth(module: nn.Module, state_dict: dict[str, Tensor], prefix: str, *unused: Any) -> None:
    """Refuse a checkpoint of another depth, or one that does not say its depth, before any of it is loaded.

    ``strict=False`` does not help: it excuses missing keys, and here the key would change the function.

    Raises:
        ValueError: naming both depths and what converts one into the other.
    """
    guard = module.get_submodule("depth_guard") if "depth_guard" in dict(module.named_children()) else None
    if not isinstance(guard, DepthGuard):
        return
    here = (guard.depth.encoder_layers, guard.depth.decoder_layers)
    key = f"{prefix}depth_guard.num_layers"
    stored = state_dict.get(key)
    if stored is None:
        if any(name.startswith(prefix) for name in state_dict):
            raise ValueError(
                f"the checkpoint has no {key!r}: it does not say which depth its skip scales come from, and this model "
                f"has {describe_depth(*here)}. A post-LN checkpoint would compute another function here; convert the "
                "model that wrote it with kilolayer.plan_conversion. If it was trained at this depth and scheme, say "
                f"so: state_dict[{key!r}] = torch.tensor({list(here)})"
            )
        return
    found = tuple(int(count) for count in stored.tolist())
    if found != here:
        raise ValueError(
            f"the checkpoint's skip scales come from {describe_depth(*found)}, this model has "
            f"{describe_depth(*here)}: the same weights would compute another function. Load it at its own depth and "
            "convert that model with kilolayer.plan_conversion"
        )


def describe_depth(encoder_layers: int, decoder_layers: int) -> str:
    """``"12 encoder layers"``, ``"6 encoder and 6 decoder layers"``."""
    if encoder_layers and decoder_layers:
        return f"{encoder_layers} encoder and {decoder_layers} decoder layers"
    return f"{encoder_layers} encoder layers" if encoder_layers else f"{decoder_layers} decoder layers"
