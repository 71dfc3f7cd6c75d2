"""What a recording says of the set-up it was made of."""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed, nn


def describe_setup(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> dict[str, Any]:
    """The facts of a model and its optimizer, ready for JSON.

    Raises:
        ValueError: the optimizer holds none of the model's parameters, or the parameters are sharded.
    """
    parameters = list(model.parameters())
    if not parameters:
        raise ValueError(f"{type(model).__name__} has no parameters, so there is nothing to monitor")
    if any(type(parameter).__name__ == "DTensor" for parameter in parameters):
        raise ValueError("the model's parameters are sharded (DTensor), which the monitor cannot read yet; use DDP")
    facts: dict[str, Any] = {
        "torch": torch.__version__,
        "device": str(parameters[0].device),
        "dtype": str(parameters[0].dtype).removeprefix("torch."),
        "num_parameters": sum(p.numel() for p in parameters),
        "num_processes": distributed.get_world_size() if _is_distributed() else 1,
    }
    if optimizer is None:
        return facts
    owned = {id(parameter) for parameter in parameters}
    if not any(id(p) in owned for group in optimizer.param_groups for p in group["params"]):
        raise ValueError("the optimizer holds none of the model's parameters; was it built for another model?")
    facts["optimizer"] = type(optimizer).__name__
    facts["param_groups"] = [
        {key: value for key, value in group.items() if key != "params" and isinstance(value, (int, float, bool))}
        | {"num_parameters": sum(p.numel() for p in group["params"])}
        for group in optimizer.param_groups
    ]
    return facts


def is_recording_process() -> bool:
    """Whether this process is the one that records: the first, or the only one."""
    return not _is_distributed() or distributed.get_rank() == 0


def _is_distributed() -> bool:
    return distributed.is_available() and distributed.is_initialized()
