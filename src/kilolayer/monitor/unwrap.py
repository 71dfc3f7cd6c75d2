"""The objects inside the wrappers that training code puts around a model and an optimizer."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel


def unwrap_model(model: nn.Module) -> nn.Module:
    """The module whose names the caller knows: out of DDP, DataParallel and ``torch.compile``."""
    while True:
        if isinstance(model, (DistributedDataParallel, DataParallel)):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


def unwrap_optimizer(optimizer: object) -> torch.optim.Optimizer:
    """The optimizer that steps: out of the wrappers of Accelerate, Lightning and their like.

    Raises:
        TypeError: no ``torch.optim.Optimizer`` is found.
    """
    found = optimizer
    while isinstance(inner := getattr(found, "optimizer", None), torch.optim.Optimizer):
        found = inner
    if not isinstance(found, torch.optim.Optimizer):
        raise TypeError(
            f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}; "
            "with a loop of another kind pass optimizer=None and call end_step() after each step"
        )
    return found


def unwrap_optimizers(optimizer: object) -> tuple[torch.optim.Optimizer, ...]:
    """One optimizer, several, or none, out of their wrappers.

    Raises:
        TypeError: one of them is no optimizer.
        ValueError: an empty list, or one optimizer twice.
    """
    if optimizer is None:
        return ()
    if not isinstance(optimizer, (list, tuple)):
        return (unwrap_optimizer(optimizer),)
    found = tuple(unwrap_optimizer(one) for one in optimizer)
    if not found:
        raise ValueError("optimizer=[] watches no optimizer; pass None and call end_step() after each step")
    if len({id(one) for one in found}) < len(found):
        raise ValueError("the list of optimizers names one twice; list each once, the one that ends a step last")
    return found


def is_compiled(model: nn.Module) -> bool:
    """Whether ``torch.compile`` was applied to the model or to a module in it, either way."""
    return any(
        hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )
