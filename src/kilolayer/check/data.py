"""What goes in: sizes of inputs and targets, and whether one has anything to do with the other."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kilolayer.structure.schemas import tensors_in

MOST_SAMPLES = 256
"""Samples that the test of dependence looks at: its cost grows with their square."""

NUM_SHUFFLES = 99
"""Shuffles of the targets the dependence is compared with: p-values in steps of 1 %."""


def describe_tensors(tree: Any) -> list[dict[str, Any]]:
    """One row per tensor: kind, shape, and of real numbers the size."""
    return [_describe(tensor.detach()) for tensor in tensors_in(tree) if not tensor.is_meta]


def _describe(tensor: Tensor) -> dict[str, Any]:
    row: dict[str, Any] = {"shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}
    row["is_real"] = tensor.is_floating_point()
    if not tensor.is_floating_point() or not tensor.numel():
        return row
    values = tensor.float()
    finite = bool(torch.isfinite(values).all())
    row["is_finite"] = finite
    if not finite:
        return row
    std = values.std(0, correction=0) if values.dim() > 1 and len(values) > 1 else values.std(correction=0)
    row |= {
        "rms": float(values.square().mean().sqrt()),
        "mean": float(values.mean()),
        "std": float(values.std(correction=0)),
        "max_abs": float(values.abs().max()),
        # A coordinate or a pixel that differs between samples, in the middle.
        "feature_std": float(std.square().mean().sqrt()),
    }
    return row


class BatchLog:
    """Passes batches on and keeps the size of each, so that a bad one is known by its step."""

    def __init__(self, batches: Callable[[int], Any]):
        self._batches = batches
        self.rms: list[float | None] = []
        self.is_finite: list[bool] = []

    def __call__(self, step: int) -> Any:
        batch = self._batches(step)
        rows = [row for row in describe_tensors(batch) if row["is_real"]]
        self.is_finite.append(all(row.get("is_finite", True) for row in rows))
        self.rms.append(max((row["rms"] for row in rows if "rms" in row), default=None))
        return batch

    def to_dict(self) -> dict[str, Any]:
        """The sizes, by step."""
        return {"rms": self.rms, "is_finite": self.is_finite}


def dependence_p(inputs: Any, targets: Any) -> float | None:
    """Probability of as much dependence between inputs and targets by chance, by a permutation test.

    Distance covariance between samples' inputs and their targets, beside that of shuffled targets; ``None`` where the
    batch has fewer than 32 samples, inputs and targets are not one tensor each, or all samples have one target.

    Reference: Szekely, Rizzo and Bakirov 2007, Measuring and testing dependence by correlation of distances.
    """
    first, second = tensors_in(inputs)[:1], tensors_in(targets)[:1]
    if not first or not second or first[0].dim() == 0 or second[0].dim() == 0 or len(first[0]) != len(second[0]):
        return None
    num = min(len(first[0]), MOST_SAMPLES)
    if num < 32 or not first[0].is_floating_point():
        return None
    x, y = first[0][:num].detach().flatten(1).double(), second[0][:num].detach().reshape(num, -1)
    x = (x - x.mean(0)) / x.std(0).clamp_min(1e-12)
    if bool((y == y[0]).all()):
        return None
    is_class = not y.is_floating_point()
    distance = (y[:, None] != y[None]).double().mean(-1) if is_class else torch.cdist(y.double(), y.double())
    a, b = _centered(torch.cdist(x, x)), _centered(distance)
    generator = torch.Generator().manual_seed(0)
    own = float((a * b).sum())
    others = 0
    for _ in range(NUM_SHUFFLES):
        order = torch.randperm(num, generator=generator)
        others += float((a * b[order][:, order]).sum()) >= own
    value = (1 + others) / (1 + NUM_SHUFFLES)
    return value if math.isfinite(own) else None


def _centered(distance: Tensor) -> Tensor:
    return distance - distance.mean(0) - distance.mean(1, keepdim=True) + distance.mean()
