"""Scores of attention in one fused operation, computed once more for a few heads: the operation does not show them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

MOST_SAMPLES, MOST_HEADS, MOST_ROWS = 2, 4, 128


def describe_attention(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """What a row of the table of softmaxes says, from query and key.

    Masks other than the causal one are left out: they take scores away and make none.
    """
    query, key = (one.detach()[:MOST_SAMPLES, :MOST_HEADS].float() for one in args[:2])
    if query.dim() < 3 or query.shape[:-2] != key.shape[:-2]:
        query, key = query.flatten(0, -2)[None], key.flatten(0, -2)[None]
    size = query.shape[-1]
    scale = kwargs.get("scale")
    scores = query[..., :MOST_ROWS, :] @ key.transpose(-1, -2) * (size**-0.5 if scale is None else float(scale))
    is_causal = bool(kwargs.get("is_causal")) or any(one is True for one in args[3:])
    weights = _masked(scores).softmax(-1) if is_causal else scores.softmax(-1)
    return {
        "is_attention": True,
        "is_wrong_axis": False,
        "peak": _number(weights.amax(-1).mean()),
        "row_size": key.shape[-2],
        "logits_rms": _number(scores.square().mean().sqrt()),
        "logits_max": _number(scores.abs().max()),
        "is_scaled": scale is None or float(scale) != 1,
        "query_size": size,
    }


def _masked(scores: Tensor) -> Tensor:
    """Without the keys behind each query; the first rows, which have few, would look like one-hot ones."""
    mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    return scores.masked_fill(mask, -math.inf)


def _number(value: Tensor) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None
