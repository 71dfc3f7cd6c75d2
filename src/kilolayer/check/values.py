"""Statistics of the result of one operation, by what the operation is."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kilolayer.structure import ops

LARGEST = 1 << 22
"""Entries of a tensor that are looked at; of larger ones every n-th."""

SATURATED = 0.97
"""Size of a tanh beyond which its slope is below 6 %."""

WITH_UNITS = frozenset(ops.ACTIVATIONS)


@dataclass
class Stats:
    """What is known of a result.

    Attributes:
        rms, std, mean, max_abs: of all entries.
        is_finite: every entry is; ``has_nan``: one is NaN.
        zero_share: entries that are exactly 0.
        dead_share: units that are exactly 0 for every sample and position.
        saturated_share: entries within 3 % of the range from an end of tanh's or sigmoid's range.
        cosine: mean cosine between samples.
        peak: mean over rows of a softmax's largest entry.
        row_size: entries per row of a softmax.
        sample_std: RMS over entries of the standard deviation over samples, beside ``rms``: 0 where every sample gets
            the same.
    """

    rms: float
    is_finite: bool
    numel: int
    has_nan: bool = False
    std: float = math.nan
    mean: float = math.nan
    max_abs: float = math.nan
    zero_share: float = math.nan
    dead_share: float = math.nan
    saturated_share: float = math.nan
    cosine: float = math.nan
    peak: float = math.nan
    row_size: int = 0
    sample_std: float = math.nan


def describe(tensor: Tensor, operation: str, *, unit_dim: int) -> Stats:
    """The statistics of a result."""
    x = tensor.detach()
    numel = x.numel()
    wide = x.float() if x.element_size() < 4 else x
    low, high = (float(one) for one in torch.aminmax(wide))
    finite = math.isfinite(low) and math.isfinite(high)
    if not finite:
        return Stats(_finite_rms(wide), False, numel, has_nan=math.isnan(low) or math.isnan(high))
    found = Stats(_rms(wide), True, numel, max_abs=max(-low, high), mean=float(wide.mean()))
    is_matrix = operation in ops.MATRICES or operation in ops.FUSED_NORMS or operation in ("embedding", "add")
    is_softmax = operation in ops.SOFTMAX
    if not (is_matrix or is_softmax or operation in WITH_UNITS):
        return found
    found.std = math.sqrt(max(found.rms**2 - found.mean**2, 0.0))
    if wide.dim() >= 2 and wide.shape[0] > 1:
        found.cosine = _cosine(wide)
        found.sample_std = float(wide.std(0, correction=0).square().mean().sqrt())
    if operation in WITH_UNITS:
        found.zero_share = float((wide == 0).sum()) / numel
        found.dead_share = _dead_share(wide, unit_dim)
        found.saturated_share = _saturated_share(wide, operation)
    if is_softmax:
        found.peak = float(wide.amax(-1).mean())
        found.row_size = wide.shape[-1]
    return found


def _rms(x: Tensor) -> float:
    value = float(torch.linalg.vector_norm(x)) / math.sqrt(x.numel())
    if 1e-15 < value < 1e15 or x.dtype is torch.float64:
        return value
    return float(torch.linalg.vector_norm(x, dtype=torch.float64)) / math.sqrt(x.numel())


def _finite_rms(x: Tensor) -> float:
    kept = x[torch.isfinite(x)]
    return _rms(kept) if kept.numel() else math.nan


def _cosine(x: Tensor) -> float:
    rows = x.flatten(1)
    size = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    unit = rows / size.clamp_min(torch.finfo(x.dtype).tiny)
    num = len(rows)
    excess = float(unit.sum(0).square().sum()) - float(torch.count_nonzero(size))
    return excess / (num * (num - 1))


def _dead_share(x: Tensor, unit_dim: int) -> float:
    if x.dim() < 2:
        return math.nan
    dim = unit_dim % x.dim()
    rest = [one for one in range(x.dim()) if one != dim]
    return (
        float((x == 0).all(dim=rest[0]).flatten().float().mean())
        if len(rest) == 1
        else float((x.movedim(dim, -1).reshape(-1, x.shape[dim]) == 0).all(0).float().mean())
    )


def _saturated_share(x: Tensor, operation: str) -> float:
    if operation == "tanh":
        return float((x.abs() > SATURATED).float().mean())
    if operation == "sigmoid":
        return float(((x - 0.5).abs() > SATURATED / 2).float().mean())
    return math.nan
