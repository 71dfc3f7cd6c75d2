"""Statistics of one tensor as 0-d tensors, taken where the tensor is."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

CORE = ("rms",)
FULL = ("rms", "std", "max_abs", "zero_fraction", "sample_cosine")

SAFE = (1e-15, 1e15)
"""Norms between which float32 neither overflows nor underflows in the squares that were summed."""


def l2_norm(x: Tensor) -> Tensor:
    """Square root of the sum of squares.

    Half precision is summed in float32. On the CPU, where a look at the result costs nothing, a result that
    the squares may have over- or underflowed is taken again in float64: there it is finite exactly when every
    entry is, and 0 exactly when every entry is.
    """
    norm = torch.linalg.vector_norm(x, dtype=torch.float32 if x.element_size() < 4 else None)
    return norm if is_safe(norm) else torch.linalg.vector_norm(x, dtype=torch.float64)


def l2_norms(tensors: Sequence[Tensor]) -> Tensor:
    """:func:`l2_norm` of many tensors in one fused call, ``(num_tensors,)``; float64 on the CPU."""
    device = tensors[0].device
    norms = torch._foreach_norm(list(tensors), 2, torch.float32 if tensors[0].element_size() < 4 else None)
    out = torch.stack([norm.to(device) for norm in norms])
    if device.type != "cpu":
        return out
    out = out.double()
    if tensors[0].dtype != torch.float64:
        for index, norm in enumerate(out.tolist()):
            if not SAFE[0] < norm < SAFE[1]:
                out[index] = l2_norm(tensors[index])
    return out


def is_safe(norm: Tensor) -> bool:
    """Whether a norm can be trusted as it is; always where a look would mean a transfer."""
    return norm.device.type != "cpu" or norm.dtype == torch.float64 or SAFE[0] < norm.item() < SAFE[1]


def widen(x: Tensor, norm: Tensor) -> Tensor:
    """The tensor in a precision in which its squares are safe: float64 where its norm says so, else float32 up."""
    if not is_safe(norm.float()):
        return x.double()
    return x.float() if x.element_size() < 4 else x


def rms(x: Tensor) -> Tensor:
    """Root of the mean square over all entries."""
    return l2_norm(x) * x.numel() ** -0.5


def std(x: Tensor) -> Tensor:
    """Standard deviation over all entries about their common mean (divisor: number of entries)."""
    return torch.std(x, correction=0)


def max_abs(x: Tensor) -> Tensor:
    """Largest magnitude; NaN where an entry is NaN."""
    low, high = torch.aminmax(x)
    return torch.maximum(-low, high)


def zero_fraction(x: Tensor) -> Tensor:
    """Share of entries that are exactly 0."""
    return 1 - torch.count_nonzero(x) / x.numel()


def sample_cosine(x: Tensor) -> Tensor:
    """Mean cosine between pairs of different samples, the first dimension counting samples; NaN for one sample.

    With unit vectors u_i: ``(|sum u_i|^2 - B) / (B (B - 1))``. Samples that are all 0 count as unlike any other.
    """
    samples = x.flatten(1)
    size = torch.linalg.vector_norm(samples, dim=1, keepdim=True)
    unit_sum = (samples / size.clamp_min(torch.finfo(x.dtype).tiny)).sum(0)
    num_samples = torch.count_nonzero(size)
    return (unit_sum.square().sum() - num_samples) / (len(x) * (len(x) - 1) or torch.nan)


STATISTICS = {function.__name__: function for function in (rms, std, max_abs, zero_fraction, sample_cosine)}
