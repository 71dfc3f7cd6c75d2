"""Remedies of the data: inputs of unit size, samples that are finite, another precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kilolayer.diagnosis.examined import Examined
from kilolayer.diagnosis.finding import Finding
from kilolayer.remedies.remedy import AnySetup, Edited, SetupLike, Unsuitable, changed


def standardize_inputs(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """Mean 0 and std 1 per feature, or per channel of images, by the statistics of the first batch."""
    inputs, _ = setup.parts(setup.batch)
    first = _first_real(inputs)
    if first is None:
        raise Unsuitable("the inputs hold no tensor of real numbers to standardize")
    dims = [0, *range(2, first.dim())] if first.dim() > 3 else list(range(first.dim() - 1)) or [0]
    wide = first.detach().float()
    mean, std = wide.mean(dims, keepdim=True), wide.std(dims, keepdim=True, correction=0).clamp_min(1e-6)

    def scaled(tensor: Tensor) -> Tensor:
        return ((tensor.float() - mean.to(tensor.device)) / std.to(tensor.device)).to(first.dtype)

    def change(inputs: Any) -> Any:
        return _with_first_real(inputs, scaled)

    return Edited(
        _with_inputs(setup, change),
        f"inputs of mean {float(wide.mean()):.3g} and std {float(wide.std()):.3g} standardized",
    )


def standardize_patch(finding: Finding, found: Examined) -> str:
    """As code."""
    return (
        "mean, std = train_inputs.mean(0), train_inputs.std(0).clamp_min(1e-6)  # of the training set, once\n"
        "inputs = (inputs - mean) / std"
    )


def drop_bad_samples(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """Leave samples out that hold NaN or infinity, in every batch."""
    if setup.compute_loss is not None:
        raise Unsuitable("the batch is read by compute_loss, so its samples cannot be told apart")
    _keep_finite(setup.batch)

    def clean(step: int) -> Any:
        return _keep_finite(setup.batch if batches is None else batches(step))

    batches = setup.batches
    fields = {} if batches is None else {"batches": clean}
    return Edited(changed(setup, batch=_keep_finite(setup.batch), **fields), "samples with NaN or infinity left out")


def bad_samples_patch(finding: Finding, found: Examined) -> str:
    """As code."""
    return "good = torch.isfinite(inputs).flatten(1).all(1)\ninputs, targets = inputs[good], targets[good]"


def _keep_finite(batch: Any) -> Any:
    if not isinstance(batch, (tuple, list)) or not all(isinstance(one, Tensor) and one.dim() for one in batch):
        raise Unsuitable("the batch is not made of tensors whose first dimension counts samples")
    good = torch.ones(len(batch[0]), dtype=torch.bool, device=batch[0].device)
    for one in batch:
        if one.is_floating_point():
            good &= torch.isfinite(one).reshape(len(one), -1).all(1).to(good.device)
    if not bool(good.any()):
        raise Unsuitable("no sample of the batch is finite")
    return tuple(one[good.to(one.device)] for one in batch)


def _first_real(inputs: Any) -> Tensor | None:
    values = inputs.values() if isinstance(inputs, dict) else inputs if isinstance(inputs, (tuple, list)) else [inputs]
    return next((one for one in values if isinstance(one, Tensor) and one.is_floating_point()), None)


def _with_first_real(inputs: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(inputs, Tensor):
        return change(inputs)
    pairs = list(inputs.items()) if isinstance(inputs, dict) else list(enumerate(inputs))
    place = next(key for key, one in pairs if isinstance(one, Tensor) and one.is_floating_point())
    new = [(key, change(one) if key == place else one) for key, one in pairs]
    return dict(new) if isinstance(inputs, dict) else type(inputs)(one for _, one in new)


def _with_inputs(setup: AnySetup, change: Callable[[Any], Any]) -> AnySetup:
    """The set-up with other inputs in every batch; the caller's tensors stay as they are."""
    pair = isinstance(setup.batch, (tuple, list)) and len(setup.batch) == 2

    def new(batch: Any) -> Any:
        return (change(batch[0]), batch[1]) if pair else change(batch)

    batches = setup.batches
    fields: dict[str, Any] = {} if batches is None else {"batches": lambda step: new(batches(step))}
    return changed(setup, batch=new(setup.batch), **fields)


def cast_batches(setup: AnySetup, dtype: torch.dtype) -> AnySetup:
    """The set-up with every half tensor of its batches in another dtype."""

    def cast(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.to(dtype) if value.dtype in (torch.float16, torch.bfloat16) else value
        if isinstance(value, dict):
            return {key: cast(one) for key, one in value.items()}
        return type(value)(cast(one) for one in value) if isinstance(value, (tuple, list)) else value

    batches = setup.batches
    fields: dict[str, Any] = {} if batches is None else {"batches": lambda step: cast(batches(step))}
    return changed(setup, batch=cast(setup.batch), **fields)
