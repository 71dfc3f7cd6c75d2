"""What a loss is given, seen at the operation that computes it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

SUM_TOLERANCE = 1e-3
"""How far from 1 probabilities may sum: half precision rounds each to three digits."""

CLASS_LOSSES = {"nll_loss_forward": 1, "nll_loss2d_forward": 1, "nll_loss_nd": 1}
"""Operations that pick a class, and the dimension of classes (0 for a single sample)."""

REGRESSION_LOSSES = {"mse_loss": "mse", "smooth_l1_loss": "smooth-l1", "huber_loss": "huber"}
BINARY_LOSSES = {"binary_cross_entropy": "bce", "binary_cross_entropy_with_logits": "bce-with-logits"}
LOSS_OPERATIONS = {*CLASS_LOSSES, *REGRESSION_LOSSES, *BINARY_LOSSES}


@dataclass
class LossInput:
    """One loss operation.

    Attributes:
        kind: ``nll``, ``mse``, ``bce`` and so on.
        value, target: the record's values of what is compared.
        own: the mean loss of an entry as it is.
        baseline: the loss of the best answer that does not look at the input; ``None`` where there is no such thing.
        chance: for classes, ln of how many there are.
        class_dim: the dimension of classes.
        normalized_dims: the dimensions along which what came in, or its exponential, sums to 1.
        low, high: least and largest entry of what is compared; ``target_*``: of the targets.
        expanded: ``(own, target)`` sizes before they were stretched to one shape.
    """

    kind: str
    value: int
    target: int
    own: float | None = None
    baseline: float | None = None
    chance: float | None = None
    class_dim: int | None = None
    num_classes: int | None = None
    normalized_dims: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()
    low: float = math.nan
    high: float = math.nan
    target_low: float = math.nan
    target_high: float = math.nan
    target_mean: float = math.nan
    target_std: float = math.nan
    num_targets: int = 0


def describe_loss(name: str, args: tuple[Any, ...], *, value: int, target: int) -> LossInput:
    """A loss operation from its arguments."""
    own, goal = args[0].detach(), args[1].detach()
    if name in CLASS_LOSSES:
        return _describe_classes(own, goal, args, value=value, target=target)
    low, high = (float(one) for one in torch.aminmax(own))
    kind = REGRESSION_LOSSES.get(name) or BINARY_LOSSES[name]
    wide = goal.float()
    found = LossInput(kind, value, target, shape=tuple(own.shape), low=low, high=high, num_targets=goal.numel())
    found.target_low, found.target_high = (float(one) for one in torch.aminmax(wide))
    found.target_mean, found.target_std = float(wide.mean()), float(wide.std(correction=0))
    found.baseline = _baseline(kind, wide)
    found.own = _mean_loss(kind, own.float(), wide)
    return found


def _mean_loss(kind: str, own: Tensor, target: Tensor) -> float | None:
    if own.shape != target.shape:
        return None
    if kind == "bce":
        return float(F.binary_cross_entropy(own, target))
    if kind == "bce-with-logits":
        return float(F.binary_cross_entropy_with_logits(own, target))
    return float(F.mse_loss(own, target) if kind == "mse" else F.smooth_l1_loss(own, target))


def _describe_classes(own: Tensor, goal: Tensor, args: tuple[Any, ...], *, value: int, target: int) -> LossInput:
    dim = 1 if own.dim() > 1 else 0
    ignore = args[4] if len(args) > 4 else -100
    kept = goal.flatten()[goal.flatten() != ignore]
    counts = torch.bincount(kept[kept >= 0]).double()
    shares = counts[counts > 0] / counts.sum() if len(kept) else counts
    low, high = (float(one) for one in torch.aminmax(own))
    mean = F.nll_loss(own.float(), goal, ignore_index=ignore) if len(kept) else None
    return LossInput(
        "nll",
        value,
        target,
        own=None if mean is None else float(mean),
        baseline=float(-(shares * shares.log()).sum()) if len(kept) else None,
        chance=math.log(own.shape[dim]),
        class_dim=dim,
        num_classes=own.shape[dim],
        normalized_dims=_normalized(own.exp()),
        shape=tuple(own.shape),
        low=low,
        high=high,
        num_targets=len(kept),
    )


def _normalized(probabilities: Tensor) -> tuple[int, ...]:
    return tuple(
        dim
        for dim in range(probabilities.dim())
        if probabilities.shape[dim] > 1 and bool(((probabilities.sum(dim) - 1).abs() < SUM_TOLERANCE).all())
    )


def _baseline(kind: str, target: Tensor) -> float | None:
    """The mean loss of the best constant per output."""
    rows = target.flatten(1) if target.dim() > 1 else target[:, None] if target.dim() else target.reshape(1, 1)
    if len(rows) < 2:
        return None
    if kind in ("bce", "bce-with-logits"):
        share = rows.mean(0).clamp(1e-7, 1 - 1e-7)
        return float(-(share * share.log() + (1 - share) * (1 - share).log()).mean())
    center = rows.mean(0) if kind == "mse" else rows.median(0).values
    error = (rows - center).abs()
    if kind == "mse":
        return float(error.square().mean())
    # Both are quadratic up to 1 and linear behind it.
    return float(torch.where(error < 1, 0.5 * error.square(), error - 0.5).mean())
