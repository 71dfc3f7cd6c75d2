"""Whether a model still computes what it computed: outputs before and behind, in the model's own dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from kilolayer.structure.keep import evaluated
from kilolayer.structure.schemas import tensors_in

TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-12, torch.float16: 2e-2, torch.bfloat16: 1.5e-1}
"""Largest difference, relative to the largest output where that is above 1; half precision keeps 3 and 2 digits."""


def tolerance_of(model: nn.Module) -> float:
    """The tolerance of the coarsest dtype among a model's parameters."""
    dtypes = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    return max((TOLERANCES.get(dtype, TOLERANCES[torch.bfloat16]) for dtype in dtypes), default=1e-5)


def check_has_values(model: nn.Module) -> None:
    """Refuse a model without values.

    Raises:
        ValueError: a parameter on the meta device.
    """
    name = next((name for name, one in model.named_parameters() if one.is_meta), None)
    if name is not None:
        raise ValueError(f"{name} of {type(model).__name__} is on the meta device and has no values; load them first")


def check_unwrapped(model: nn.Module) -> None:
    """Refuse a wrapper that knows the parameters it was made with, where others will take their place.

    Raises:
        ValueError: a model inside of ``DistributedDataParallel``.
    """
    if any(isinstance(module, DistributedDataParallel) for module in model.modules()):
        raise ValueError(
            "DistributedDataParallel keeps only the parameters it was made with in step; change the model inside, its "
            ".module, and wrap that anew"
        )


def check_verifiable(before: Sequence[Sequence[Tensor]], name: str) -> None:
    """Refuse outputs that nothing can be compared with.

    Raises:
        ValueError: no floating-point output, or none that holds a finite number.
    """
    if not any(before):
        raise ValueError(f"{name} returns no floating-point tensor, so nothing can be verified")
    for outputs in before:
        if outputs and not any(bool(torch.isfinite(one).any()) for one in outputs):
            raise ValueError(f"{name} returns no finite number before anything was changed: its weights are broken")


def run_all(model: nn.Module, inputs: Sequence[Any]) -> list[list[Tensor]]:
    """The floating-point outputs for each of several inputs, in evaluation mode, the model left as found."""
    return [run_once(model, one) for one in inputs]


def run_once(model: nn.Module, inputs: Any) -> list[Tensor]:
    """The floating-point outputs for one input, in evaluation mode, the model left as found."""
    args, kwargs = split_inputs(inputs)
    device = next((one.device.type for one in model.parameters()), "cpu")
    with evaluated(model, (args, kwargs)), torch.no_grad(), torch.autocast(device, enabled=False):
        out = model(*args, **kwargs)
    return [one.detach().clone() for one in tensors_in(out) if one.is_floating_point()]


def split_inputs(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments from a tensor, a tuple or a mapping."""
    if isinstance(inputs, Tensor):
        return (inputs,), {}
    if isinstance(inputs, (tuple, list)):
        return tuple(inputs), {}
    return (), dict(inputs)


def largest_difference(before: Sequence[Sequence[Tensor]], after: Sequence[Sequence[Tensor]]) -> float:
    """The largest difference of any output, relative to the largest entry of that output where that is above 1.

    Outputs of different number or shape, and such that are not finite in other places, differ infinitely.
    """
    worst = 0.0
    for one, other in zip(before, after, strict=True):
        if len(one) != len(other) or any(a.shape != b.shape for a, b in zip(one, other, strict=True)):
            return float("inf")
        for a, b in zip(one, other, strict=True):
            worst = max(worst, _difference(a, b))
    return worst


def _difference(before: Tensor, after: Tensor) -> float:
    if before.numel() == 0:
        return 0.0
    finite = torch.isfinite(before)
    if not torch.equal(finite, torch.isfinite(after)) or not torch.equal(before[~finite], after[~finite]):
        return 0.0 if torch.equal(before.isnan(), after.isnan()) and bool(before.isnan().all()) else float("inf")
    a, b = before[finite].double(), after[finite].double()
    if a.numel() == 0:
        return 0.0
    return float((a - b).abs().max() / a.abs().max().clamp(min=1.0))
