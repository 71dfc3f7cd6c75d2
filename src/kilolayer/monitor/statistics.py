"""Statistics of one tensor, taken where the tensor is.

On the CPU a statistic is a float at once. On an accelerator it stays there as a 0-d tensor with the factor that
is still to be multiplied in, so that a step costs one transfer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.linalg import vector_norm

Value = float | tuple[Tensor, float]
"""A number, or a 0-d tensor on an accelerator and the factor it is to be multiplied by on the host."""

Bounds = tuple[float, float]
"""The ends of an activation function's range."""

NAMES = ("rms", "std", "max_abs", "zero_fraction", "saturated_fraction", "sample_cosine")
"""Statistics of an activation."""

SAFE = (1e-15, 1e15)
"""Norms between which float32 neither overflows nor underflows in the squares that were summed."""

SMALL, CHUNK = 1 << 10, 1 << 18
"""Entries up to which reading a tensor takes no longer than calling for it, and entries that are put together at once:
they stay in the cache."""

SATURATED_SHARE = 0.01
"""An activation counts as saturated within this share of its range from an end."""


class Scratch:
    """Memory for intermediate results, used again from tensor to tensor: a fresh block each time would be paged in
    anew, which takes longer than filling it."""

    def __init__(self) -> None:
        self._flat: dict[tuple[str, int, torch.dtype], Tensor] = {}
        self._shaped: dict[tuple[str, int, torch.dtype, torch.Size], Tensor] = {}

    def like(self, x: Tensor, *, dtype: torch.dtype | None = None, use: str = "result") -> Tensor:
        """Uninitialized memory of the shape, device and type of ``x``; one block per ``use``."""
        key = (use, x.get_device(), dtype or x.dtype)
        place = (key[0], key[1], key[2], x.shape)
        shaped = self._shaped.get(place)
        if shaped is None:
            flat = self._flat.get(key)
            if flat is None or flat.numel() < x.numel():
                flat = self._flat[key] = torch.empty(x.numel(), dtype=key[2], device=x.device)
                self._shaped = {other: view for other, view in self._shaped.items() if other[:3] != key}
            shaped = self._shaped[place] = flat[: x.numel()].view(x.shape)
        return shaped

    def clear(self) -> None:
        """Give the memory back."""
        self._flat.clear()
        self._shaped.clear()


def is_readable(x: Tensor) -> bool:
    """Whether statistics of this tensor mean anything: real floating point of two bytes or more, dense, not empty,
    not on ``meta``, and all of it in this process."""
    return (
        x.is_floating_point()
        and x.element_size() > 1
        and not is_distributed(x)
        and x.layout is torch.strided
        and not x.is_nested
        and x.device.type != "meta"
        and x.numel() > 0
    )


def is_distributed(x: Tensor) -> bool:
    """Whether the tensor is a ``DTensor``, of which this process may hold a part."""
    return type(x) is not Tensor and hasattr(x, "placements")


def l2_norm(x: Tensor) -> Value:
    """Square root of the sum of squares.

    Half precision is summed in float32. On the CPU, where a look at the result costs nothing, a result that
    the squares may have over- or underflowed is taken again in float64: there it is finite exactly when every
    entry is, and 0 exactly when every entry is.
    """
    norm = vector_norm(x) if x.dtype is torch.float32 else vector_norm(x, dtype=_sum_dtype(x))
    if not x.is_cpu:
        return norm, 1.0
    value = norm.item()
    if SAFE[0] < value < SAFE[1] or x.dtype is torch.float64:
        return value
    return vector_norm(x, dtype=torch.float64).item()


def rms(x: Tensor) -> Value:
    """Root of the mean square over all entries."""
    norm, share = l2_norm(x), x.numel() ** -0.5
    return norm * share if isinstance(norm, float) else (norm[0], share)


def describe(x: Tensor, scratch: Scratch, bounds: Bounds | None = None, *, with_mean: bool = False) -> dict[str, Value]:
    """RMS, std, largest magnitude, zero fraction, sample cosine and, where ``bounds`` say what it is, saturation.

    - ``std``: about the common mean of all entries; divisor: their number.
    - ``max_abs``: NaN where an entry is NaN.
    - ``zero_fraction``: share of entries that are exactly 0.
    - ``sample_cosine``: mean cosine between pairs of different samples, see :func:`sample_cosine`; left out for a
      tensor without samples.
    - ``saturated_fraction``: share of entries within one hundredth of the range from one of its ends.
    - ``mean``, on request: of all entries.
    """
    norm = l2_norm(x)
    share = 1 / x.numel()
    found = {"rms": times(norm, share**0.5)}
    x = _widen(x, norm, scratch)
    room = scratch.like(x)
    mean = x.mean()
    torch.sub(x, mean, out=room)
    found["std"] = times(_host(vector_norm(room)), share**0.5)
    if with_mean:
        found["mean"] = _host(mean)
    low, high = torch.aminmax(x)
    found["max_abs"] = _host(torch.maximum(-low, high))
    found["zero_fraction"] = times(_host(torch.eq(x, 0, out=room).sum()), share)
    if bounds is not None:
        margin = SATURATED_SHARE * (bounds[1] - bounds[0])
        lower = torch.le(x, bounds[0] + margin, out=room).sum()
        upper = torch.ge(x, bounds[1] - margin, out=room).sum()
        found["saturated_fraction"] = times(_host(lower + upper), share)
    if x.dim() >= 2:
        found["sample_cosine"] = sample_cosine(x, scratch)
    return found


def sample_cosine(x: Tensor, scratch: Scratch) -> Value:
    """Mean cosine between pairs of different samples, the first dimension counting samples; NaN for one sample.

    With unit vectors u_i: ``(|sum u_i|^2 - B) / (B (B - 1))``. Samples that are all 0 count as unlike any other.
    """
    num_samples = x.shape[0]
    if num_samples < 2:
        return math.nan
    samples = x.flatten(1)
    size = vector_norm(samples, dim=1, keepdim=True)
    unit = torch.div(samples, size.clamp_min(torch.finfo(x.dtype).tiny), out=scratch.like(samples))
    excess = unit.sum(0).square().sum() - torch.count_nonzero(size)
    return times(_host(excess), 1 / (num_samples * (num_samples - 1)))


def l2_norms(tensors: Sequence[Tensor]) -> np.ndarray | Tensor:
    """:func:`l2_norm` of many tensors in one fused call per type, ``(num_tensors,)``.

    A float64 array on the CPU, a tensor on the first tensor's device elsewhere.
    """
    norms = _like_norms(tensors)
    if norms is None:
        norms = torch.stack(_foreach_norms(tensors))
    if not norms.is_cpu:
        return norms
    values = norms.double().numpy()
    for index in np.flatnonzero(~((values > SAFE[0]) & (values < SAFE[1]))).tolist():
        values[index] = vector_norm(tensors[index], dtype=torch.float64).item()
    return values


def _like_norms(tensors: Sequence[Tensor]) -> Tensor | None:
    """The norms where all tensors are on the CPU and of one type of four bytes or more; ``None`` elsewhere.

    There a fused call is one call per tensor, so that small ones of one shape are put together first.
    """
    dtype = tensors[0].dtype
    if dtype.itemsize < 4 or dtype.is_complex or not all(x.dtype is dtype and x.is_cpu for x in tensors):
        return None
    norms = torch.empty(len(tensors), dtype=dtype)
    by_shape: dict[torch.Size, list[int]] = {}
    large = []
    for place, tensor in enumerate(tensors):
        if 0 < tensor.numel() <= SMALL:
            by_shape.setdefault(tensor.shape, []).append(place)
        else:
            large.append(place)
    for shape, places in by_shape.items():
        most = CHUNK // shape.numel()
        for start in range(0, len(places), most):
            some = places[start : start + most]
            norms[torch.tensor(some)] = vector_norm(
                torch.stack([tensors[place] for place in some]).view(len(some), -1), dim=1
            )
    if large:
        norms[torch.tensor(large)] = torch.stack(torch._foreach_norm([tensors[place] for place in large], 2))
    return norms


def _foreach_norms(tensors: Sequence[Tensor]) -> list[Tensor]:
    """One 0-d tensor each, all on the first one's device and of one type."""
    dtype, device = tensors[0].dtype, tensors[0].get_device()
    if all(tensor.dtype is dtype and tensor.get_device() == device for tensor in tensors):
        return list(torch._foreach_norm(list(tensors), 2, _sum_dtype(tensors[0])))
    norms: list[Tensor] = list(tensors)
    kinds = [(tensor.dtype, tensor.device) for tensor in tensors]
    for kind in dict.fromkeys(kinds):
        places = [index for index, other in enumerate(kinds) if other == kind]
        group = [tensors[index] for index in places]
        for index, norm in zip(places, torch._foreach_norm(group, 2, _sum_dtype(group[0])), strict=True):
            norms[index] = norm.to(tensors[0].device)
    widest = torch.float64 if any(norm.dtype == torch.float64 for norm in norms) else torch.float32
    return [norm.to(widest) for norm in norms]


def _sum_dtype(x: Tensor) -> torch.dtype | None:
    return torch.float32 if x.element_size() < 4 else None


def _widen(x: Tensor, norm: Value, scratch: Scratch) -> Tensor:
    """The tensor in a precision in which its squares are safe: float64 where its norm says so, else float32 up."""
    if isinstance(norm, float) and not SAFE[0] < norm < SAFE[1] and x.dtype != torch.float64:
        return x.double()
    if x.element_size() >= 4:
        return x
    return scratch.like(x, dtype=torch.float32, use="wide").copy_(x)


def _host(value: Tensor) -> Value:
    return value.item() if value.is_cpu else (value, 1.0)


def times(value: Value, factor: float) -> Value:
    """A value multiplied by a factor, without a look at it."""
    return value * factor if isinstance(value, float) else (value[0], value[1] * factor)
