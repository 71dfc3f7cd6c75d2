"""Exact facts of a set-up's parameters: who trains them, and whether a gradient reaches them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from kilolayer.check.probe import Pass
from kilolayer.check.setup import Setup

MOST_ROWS = 512
"""Rows of a matrix that are compared with each other."""


def describe_parameters(setup: Setup, found: Pass | None = None) -> list[dict[str, Any]]:
    """One row per parameter of the model, after a backward pass.

    Args:
        setup: gradients of one backward pass are in place.
        found: the pass, for what the loss was computed from and where its graph ends.
    """
    groups = _groups(setup)
    reached = set() if found is None else found.reached
    inside = set() if found is None else found.values_in_loss()
    values = [] if found is None else [found.record.values[value] for value in inside]
    in_loss = {value.name for value in values if value.source == "parameter"}
    rows = []
    for name, parameter in setup.model.named_parameters():
        group = groups.get(id(parameter))
        grad = parameter.grad
        rows.append(
            {
                "name": name,
                "shape": list(parameter.shape),
                "numel": parameter.numel(),
                "dtype": str(parameter.dtype).removeprefix("torch."),
                "is_trainable": parameter.requires_grad,
                "is_optimized": None if setup.optimizer is None else group is not None,
                "lr": None if group is None else _as_float(group.get("lr")),
                "weight_decay": None if group is None else _as_float(group.get("weight_decay")),
                "is_reached": id(parameter) in reached,
                "is_in_loss": name in in_loss,
                "rms": _rms(parameter),
                "grad": _describe_grad(grad),
                "grad_rms": None if grad is None else _rms(grad),
                "identical_rows": _identical_rows(parameter),
                "identical_grad_rows": None if grad is None else _identical_rows(grad),
            }
        )
    return rows


def describe_optimizer(setup: Setup) -> dict[str, Any]:
    """The optimizer's kind and settings."""
    if setup.optimizer is None:
        return {}
    own = {id(parameter) for parameter in setup.model.parameters()}
    held = [p for group in setup.optimizer.param_groups for p in group["params"]]
    return {
        "name": type(setup.optimizer).__name__,
        "groups": [
            {key: value for key, value in group.items() if isinstance(value, (int, float, bool)) and key != "params"}
            for group in setup.optimizer.param_groups
        ],
        "num_foreign": sum(id(parameter) not in own for parameter in held),
    }


def describe_unregistered(model: nn.Module, tensors: list[Tensor], setup: Setup) -> list[dict[str, Any]]:
    """Trained tensors that the model computes with and does not list."""
    owned = {id(p) for p in model.parameters()} | set(_groups(setup))
    places = _attribute_names(model)
    return [
        {"name": places.get(id(tensor), ""), "shape": list(tensor.shape), "numel": tensor.numel()}
        for tensor in tensors
        if id(tensor) not in owned
    ]


def _attribute_names(model: nn.Module) -> dict[int, str]:
    """Where in a module's plain attributes, lists and dictionaries a parameter is kept."""
    found: dict[int, str] = {}
    for path, module in model.named_modules():
        for key, value in vars(module).items():
            if not key.startswith("_"):
                _collect(value, f"{path}.{key}" if path else key, found, depth=0)
    return found


def _collect(value: Any, name: str, found: dict[int, str], *, depth: int) -> None:
    if isinstance(value, Tensor):
        found.setdefault(id(value), name)
    elif isinstance(value, nn.Module):
        for key, parameter in value.named_parameters():
            found.setdefault(id(parameter), f"{name}.{key}")
    elif depth < 3 and isinstance(value, (list, tuple, dict)):
        pairs: Any = value.items() if isinstance(value, dict) else enumerate(value)
        for key, one in pairs:
            _collect(one, f"{name}[{key!r}]", found, depth=depth + 1)


def _groups(setup: Setup) -> dict[int, dict[str, Any]]:
    if setup.optimizer is None:
        return {}
    return {id(p): group for group in setup.optimizer.param_groups for p in group["params"]}


def _describe_grad(grad: Tensor | None) -> str:
    if grad is None:
        return "none"
    values = grad.coalesce().values() if grad.is_sparse else grad
    if values.numel() == 0 or not bool((values != 0).any()):
        return "zero"
    return "finite" if bool(torch.isfinite(values).all()) else "nonfinite"


def _rms(tensor: Tensor) -> float | None:
    values = tensor.detach()
    values = values.coalesce().values() if values.is_sparse else values
    if values.numel() == 0 or not values.is_floating_point() or values.is_meta:
        return None
    value = float(torch.linalg.vector_norm(values, dtype=torch.float64)) / math.sqrt(values.numel())
    return value if math.isfinite(value) else None


def _identical_rows(tensor: Tensor) -> float | None:
    """Share of a matrix's rows that repeat an earlier one; rows of zeros alone do not count as rows."""
    if tensor.dim() < 2 or tensor.shape[0] < 2 or tensor.is_sparse or not tensor.is_floating_point():
        return None
    rows = tensor.detach().flatten(1)[:MOST_ROWS].float()
    scale = float(rows.abs().max())
    if not math.isfinite(scale) or scale == 0:
        return None
    # Sums in another order differ in the last digits: alike to 1e-5 of the largest entry is alike.
    kept = (rows / scale * 1e5).round()
    return 1 - len(torch.unique(kept, dim=0)) / len(rows)


def _as_float(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float, Tensor)) else None
