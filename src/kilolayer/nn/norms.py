"""Norms by name; every block takes a norm as a part, so this is the only place that knows the names."""

from __future__ import annotations

from torch import nn

EPS = 1e-5

NORMS = ("layer", "rms", "batch")


def build_norm(kind: str, width: int) -> nn.Module:
    """A norm over the last dimension (``layer``, ``rms``) or over the batch (``batch``), for ``(batch, width)``.

    Raises:
        ValueError: unknown kind.
    """
    if kind == "layer":
        return nn.LayerNorm(width, eps=EPS)
    if kind == "rms":
        return nn.RMSNorm(width, eps=EPS)
    if kind == "batch":
        return nn.BatchNorm1d(width, eps=EPS)
    raise ValueError(f"norm {kind!r} is unknown; use one of {', '.join(NORMS)}")
