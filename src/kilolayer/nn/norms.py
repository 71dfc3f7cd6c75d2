"""Norms by name; every block takes a norm as a part, so this is the only place that knows the names."""

from __future__ import annotations

import torch
from torch import nn

EPS = 1e-5

NORMS = ("layer", "rms", "batch")


def build_norm(
    kind: str,
    width: int,
    *,
    eps: float = EPS,
    bias: bool = True,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> nn.Module:
    """A norm over the last dimension (``layer``, ``rms``) or over the batch (``batch``), for ``(batch, width)``.

    ``bias`` says whether ``layer`` has one; ``rms`` never has, ``batch`` always.

    Raises:
        ValueError: unknown kind.

    Examples:
        >>> build_norm("rms", 8)
        RMSNorm((8,), eps=1e-05, elementwise_affine=True)
    """
    if kind == "layer":
        return nn.LayerNorm(width, eps=eps, bias=bias, device=device, dtype=dtype)
    if kind == "rms":
        return nn.RMSNorm(width, eps=eps, device=device, dtype=dtype)
    if kind == "batch":
        return nn.BatchNorm1d(width, eps=eps, device=device, dtype=dtype)
    raise ValueError(f"norm {kind!r} is unknown; use one of {', '.join(NORMS)}")
