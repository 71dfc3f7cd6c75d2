"""Attention masks in torch.nn's conventions, merged once per stack into what the attention kernel takes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class AttentionMask(NamedTuple):
    """What a query may see: ``tensor`` as `scaled_dot_product_attention` takes it, or causal, or everything.

    A boolean ``tensor`` is true where attention is allowed; a float one is added to the logits. It broadcasts
    to ``(batch, heads, queries, keys)``.
    """

    tensor: Tensor | None = None
    is_causal: bool = False


NO_MASK = AttentionMask()
CAUSAL_MASK = AttentionMask(is_causal=True)


def causal_mask(num_new: int, start: int, device: torch.device) -> AttentionMask:
    """What ``num_new`` tokens may see, behind ``start`` others that all of them see."""
    if not start:
        return CAUSAL_MASK
    if num_new == 1:
        return NO_MASK
    ones = torch.ones(num_new, start + num_new, dtype=torch.bool, device=device)
    return AttentionMask(ones.tril(diagonal=start))


def merge_masks(
    mask: Tensor | AttentionMask | None,
    key_padding_mask: Tensor | None = None,
    *,
    is_causal: bool = False,
    num_heads: int,
    num_queries: int,
    dtype: torch.dtype,
) -> AttentionMask:
    """One mask from torch.nn's two: both ``True`` where attention is *not* allowed, or floats to be added.

    Args:
        mask: ``(queries, keys)`` or ``(batch * heads, queries, keys)``; an :class:`AttentionMask` is returned
            as it is.
        key_padding_mask: ``(batch, keys)``, or ``(keys,)`` for an unbatched sequence.
        is_causal: ``mask`` is the causal mask, or stands for it where there is none.
        num_heads: heads of the attention.
        num_queries: queries, for the causal mask of padded keys.
        dtype: of the queries, for float masks.

    Raises:
        ValueError: a mask of another shape.
        TypeError: a mask of integers.
    """
    if isinstance(mask, AttentionMask):
        return mask
    if key_padding_mask is None and (mask is None or is_causal):
        return AttentionMask(is_causal=is_causal)
    parts = []
    if mask is not None:
        parts.append(_broadcastable(mask, num_heads))
    elif is_causal and key_padding_mask is not None:
        ones = torch.ones(num_queries, key_padding_mask.shape[-1], dtype=torch.bool, device=key_padding_mask.device)
        parts.append(ones.triu(diagonal=1))
    if key_padding_mask is not None:
        if key_padding_mask.dim() not in (1, 2):
            raise ValueError(f"a key padding mask has shape (batch, keys), got {tuple(key_padding_mask.shape)}")
        parts.append(key_padding_mask.reshape(-1, 1, 1, key_padding_mask.shape[-1]))
    return AttentionMask(_merge(parts, dtype))


def _broadcastable(mask: Tensor, num_heads: int) -> Tensor:
    if mask.dim() == 2:
        return mask
    if mask.dim() == 3 and mask.shape[0] % num_heads == 0:
        return mask.unflatten(0, (-1, num_heads))
    raise ValueError(
        f"an attention mask has shape (queries, keys) or (batch * {num_heads} heads, queries, keys), got "
        f"{tuple(mask.shape)}"
    )


def _merge(parts: list[Tensor], dtype: torch.dtype) -> Tensor:
    for part in parts:
        if part.dtype != torch.bool and not part.is_floating_point():
            raise TypeError(f"masks must be boolean or floating point, got {part.dtype}")
    if all(part.dtype == torch.bool for part in parts):
        forbidden = parts[0] if len(parts) == 1 else parts[0] | parts[1]
        return forbidden.logical_not()
    added = [_additive(part, dtype) for part in parts]
    return added[0] if len(added) == 1 else added[0] + added[1]


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, float("-inf"))
