"""What a recording says of the set-up it was made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import distributed, nn


def describe_setup(model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, Any]:
    """The facts of a model and its optimizers, ready for JSON.

    Raises:
        ValueError: an optimizer holds none of the model's parameters, or they are flattened by FSDP1.
    """
    parameters = list(model.parameters())
    if not parameters:
        raise ValueError(f"{type(model).__name__} has no parameters, so there is nothing to monitor")
    # By name: importing the class takes a second.
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        raise ValueError(
            "FullyShardedDataParallel flattens the parameters of a block into one, so none can be measured on its own; "
            "use torch.distributed.fsdp.fully_shard (FSDP2)"
        )
    facts: dict[str, Any] = {
        "torch": torch.__version__,
        "device": str(parameters[0].device),
        "dtype": str(parameters[0].dtype).removeprefix("torch."),
        "num_parameters": sum(p.numel() for p in parameters),
        "num_processes": distributed.get_world_size() if _is_distributed() else 1,
    }
    if not optimizers:
        return facts
    owned = {id(parameter) for parameter in parameters}
    for optimizer in optimizers:
        if not any(id(p) in owned for group in optimizer.param_groups for p in group["params"]):
            raise ValueError(
                f"the optimizer {type(optimizer).__name__} holds none of the model's parameters; was it built for "
                "another model, or before the model was moved or sharded?"
            )
    facts["optimizer"] = ", ".join(type(optimizer).__name__ for optimizer in optimizers)
    facts["param_groups"] = [
        {key: value for key, value in group.items() if key != "params" and isinstance(value, (int, float, bool))}
        | {"num_parameters": sum(p.numel() for p in group["params"])}
        for optimizer in optimizers
        for group in optimizer.param_groups
    ]
    return facts


def is_recording_process() -> bool:
    """Whether this process is the one that records: the first, or the only one."""
    return not _is_distributed() or distributed.get_rank() == 0


def _is_distributed() -> bool:
    return distributed.is_available() and distributed.is_initialized()
