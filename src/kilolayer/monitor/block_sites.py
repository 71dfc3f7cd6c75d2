"""Sites of this library's own blocks, from their parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from kilolayer.monitor.module_sites import BlockPlace, find_norm_kind
from kilolayer.nn import ChainBlock, Residual, ScaledNorm
from kilolayer.nn.layer import TransformerLayer
from kilolayer.recording import Site
from kilolayer.recording.site import Scale


def chain_block_sites(path: str, block: ChainBlock, place: BlockPlace) -> Iterator[Site]:
    """Pre-activation, and the norm's output where there is a norm."""
    norm_kind = None if block.norm is None else find_norm_kind(block.norm) or "unknown"
    common: dict[str, Any] = {
        "block_index": place.index,
        "chain": place.chain,
        "norm_placement": "none" if norm_kind is None else "post",
        "norm_kind": norm_kind,
        "activation": "relu",
    }
    yield Site(f"{path}.linear:out", f"{path}.linear", "linear", 0, stream=norm_kind is None, **common)
    if norm_kind is not None:
        yield Site(f"{path}.norm:out", f"{path}.norm", "norm", 0, stream=True, **common)


def residual_sites(path: str, block: Residual, place: BlockPlace) -> Iterator[Site]:
    """The branch's output and the residual sum, before and after a post-norm."""
    norms = {
        "pre": block.pre_norm.norm if isinstance(block.pre_norm, ScaledNorm) else block.pre_norm,
        "inner": getattr(block.branch, "inner_norm", None),
        "end": block.end_norm,
        "post": block.post_norm,
    }
    common = _branch_fields({slot: norm for slot, norm in norms.items() if norm is not None}) | {
        "block_index": place.index,
        "branch_index": place.index,
        "chain": place.chain,
        "activation": "relu",
        "skip_scale": _scale(block.skip_scale),
        "branch_scale": _scale(block.branch_scale),
    }
    yield Site(f"{path}.branch:out", f"{path}.branch", "branch", 0, **common)
    if norms["post"] is None:
        yield Site(f"{path}:sum", path, "sum", 0, stream=True, **common)
    else:
        yield Site(f"{path}.post_norm:in", f"{path}.post_norm", "sum", 0, **common)
        yield Site(f"{path}.post_norm:out", f"{path}.post_norm", "norm", 0, stream=True, **common)


def transformer_layer_sites(path: str, layer: TransformerLayer, place: BlockPlace) -> Iterator[Site]:
    """Each branch's output and residual sum; a sum that only the next branch reads is read where that one begins."""
    per_layer = len(layer.scales)
    for number, scales in enumerate(layer.scales, start=1):
        slots = {slot: layer.norm_in(slot, number) for slot in ("pre", "end", "post")}
        branch = _branch_module(layer, number)
        slots["inner"] = getattr(layer if branch == "linear2" else getattr(layer, branch), "inner_norm", None)
        placed = {slot: norm for slot in ("pre", "inner", "end", "post") if (norm := slots[slot]) is not None}
        common = _branch_fields(placed) | {
            "block_index": place.index,
            "branch_index": place.index * per_layer + number - 1,
            "chain": place.chain,
            "skip_scale": ("learned" if scales.skip_learned else scales.skip_scale) if scales.has_skip else None,
            "branch_scale": "learned" if scales.learned else scales.branch_scale,
        }
        end_norm = layer.norm_names.get(("end", number))
        branch_path = f"{path}.{end_norm or branch}"
        yield Site(f"{branch_path}:out", branch_path, "branch", 0, **common)
        yield from _sum_sites(path, layer, number, common)


def _sum_sites(path: str, layer: TransformerLayer, number: int, common: dict[str, Any]) -> Iterator[Site]:
    post_norm = layer.norm_names.get(("post", number))
    if post_norm is not None:
        norm_path = f"{path}.{post_norm}"
        yield Site(f"{norm_path}:in", norm_path, "sum", 0, **common)
        yield Site(f"{norm_path}:out", norm_path, "norm", 0, stream=number == len(layer.scales), **common)
    elif number == len(layer.scales):
        yield Site(f"{path}:sum", path, "sum", 0, stream=True, **common)
    else:
        entry = f"{path}.{_entry_module(layer, number + 1)}"
        yield Site(f"{entry}:in", entry, "sum", 0, **common)


def _branch_module(layer: TransformerLayer, number: int) -> str:
    if number == len(layer.scales):
        return "linear2"
    return "self_attn" if number == 1 else "multihead_attn"


def _entry_module(layer: TransformerLayer, number: int) -> str:
    """What the stream meets first in a branch."""
    pre_norm = layer.norm_names.get(("pre", number))
    if pre_norm is not None:
        return pre_norm
    return "linear1" if number == len(layer.scales) else "multihead_attn"


def _branch_fields(norms: dict[str, nn.Module]) -> dict[str, Any]:
    first = next(iter(norms.values()), None)
    return {
        "norm_placement": "+".join(norms) or "none",
        "norm_kind": None if first is None else find_norm_kind(first) or "unknown",
    }


def _scale(scale: float | nn.Parameter) -> Scale:
    return "learned" if isinstance(scale, nn.Parameter) else scale
