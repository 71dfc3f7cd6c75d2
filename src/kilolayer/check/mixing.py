"""Whether a model's answer for one sample depends on the others."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from kilolayer.check.setup import Setup, call_model
from kilolayer.structure.outer_calls import outer_calls

TOLERANCE = 1e-3
"""Difference over the outputs' size that counts: sums in another order differ by 1e-6."""

FEWEST = 4


@torch.no_grad()
def mixes_samples(setup: Setup, *, has_own_mixing: bool) -> bool | None:
    """Whether outputs fail to follow when samples change places, in evaluation mode.

    ``None`` where that cannot be told: inputs that are not one tensor, or not all that the model is called with; no
    dimension that counts samples in inputs, outputs and targets alike, random outputs, or a model that gathers along
    that dimension on purpose.
    """
    inputs, targets = setup.parts(setup.batch)
    if has_own_mixing or not isinstance(inputs, Tensor) or not isinstance(targets, Tensor):
        return None
    if inputs.dim() < 2 or targets.dim() == 0 or len(inputs) < FEWEST or len(targets) != len(inputs):
        return None
    # Where the targets have a second dimension, the first may be time.
    if targets.dim() > 1 and targets.shape[1] > 1:
        return None
    model = setup.model
    _evaluate(model)
    if setup.compute_loss is not None:
        inputs = _given(setup)
        if inputs is None or len(inputs) != len(targets):
            return None
    order = torch.arange(len(inputs) - 1, -1, -1, device=inputs.device)
    torch.manual_seed(0)
    first = call_model(model, inputs)
    torch.manual_seed(1)
    again = call_model(model, inputs)
    moved = call_model(model, inputs[order])
    if not isinstance(first, Tensor) or first.dim() == 0 or len(first) != len(inputs) or not _is_close(first, again):
        return None
    return not _is_close(first[order], moved)


def _given(setup: Setup) -> Tensor | None:
    """The tensor that a loss of the user's own calls the model itself with; ``None`` where it does anything else."""
    calls = outer_calls(setup.model, lambda: setup.compute(setup.batch))
    if len(calls) != 1 or calls[0].module is not setup.model or calls[0].kwargs or len(calls[0].args) != 1:
        return None
    given = calls[0].args[0]
    return given if isinstance(given, Tensor) and given.dim() > 0 else None


def _evaluate(model: nn.Module) -> None:
    # Not eval(), which models override with side effects; the snapshot puts the flags back.
    for module in model.modules():
        module.training = False


def _is_close(one: Any, other: Any) -> bool:
    if not bool(torch.isfinite(one).all()):
        return True
    scale = float(one.detach().float().std()) if one.numel() > 1 else 1.0
    return bool((one - other).abs().max() <= TOLERANCE * max(scale, 1e-12))
