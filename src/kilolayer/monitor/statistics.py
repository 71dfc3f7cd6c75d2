"""Statistics of one tensor as 0-d tensors: float64 accumulation, nothing moved to the host."""

from __future__ import annotations

import torch
from torch import Tensor

CORE = ("rms",)
FULL = ("rms", "std", "max_abs", "zero_fraction", "sample_cosine")


def l2_norm(x: Tensor) -> Tensor:
    """Square root of the sum of squares.

    Accumulated in float64: squares of finite float32 values cannot overflow there, so the result is finite
    exactly when every entry is.
    """
    return torch.linalg.vector_norm(x, dtype=torch.float64)


def rms(x: Tensor) -> Tensor:
    """Root of the mean square over all entries."""
    return l2_norm(x) * x.numel() ** -0.5


def std(x: Tensor) -> Tensor:
    """Standard deviation over all entries about their common mean (divisor: number of entries)."""
    return torch.std(x.double(), correction=0)


def max_abs(x: Tensor) -> Tensor:
    """Largest magnitude; NaN where an entry is NaN."""
    low, high = torch.aminmax(x)
    return torch.maximum(-low, high).double()


def zero_fraction(x: Tensor) -> Tensor:
    """Share of entries that are exactly 0."""
    return 1 - torch.count_nonzero(x).double() / x.numel()


def sample_cosine(x: Tensor) -> Tensor:
    """Mean cosine between pairs of different samples, the first dimension counting samples; NaN for one sample.

    With unit vectors u_i: ``(|sum u_i|^2 - B) / (B (B - 1))``.
    """
    unit = torch.nn.functional.normalize(x.flatten(1).double(), eps=1e-300)
    num_samples = len(x)
    if num_samples < 2:
        return torch.full((), torch.nan, dtype=torch.float64, device=x.device)
    return (unit.sum(0).square().sum() - num_samples) / (num_samples * (num_samples - 1))


STATISTICS = {
    "rms": rms,
    "std": std,
    "max_abs": max_abs,
    "zero_fraction": zero_fraction,
    "sample_cosine": sample_cosine,
}
