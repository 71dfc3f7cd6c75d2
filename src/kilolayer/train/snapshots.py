"""What of a stepper goes into a checkpoint, by name, and back; the same whatever number of processes wrote it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from kilolayer.train.sharding import copy_whole, to_whole
from kilolayer.train.stepper import Stepper

MOMENTS = ("exp_avg", "exp_avg_sq")


def take_snapshot(stepper: Stepper) -> dict[str, dict[str, Tensor]]:
    """Weights, optimizer state and average weights, whole and on the CPU; all processes take part."""
    weights = {name: to_whole(tensor) for name, tensor in stepper.plain.state_dict().items()}
    moments: dict[str, Tensor] = {}
    for name, parameter in stepper.parameters.items():
        state = stepper.inner_optimizer.state.get(parameter, {})
        moments |= {f"{name}.{moment}": to_whole(state[moment]) for moment in MOMENTS if moment in state}
        if "step" in state:
            moments[f"{name}.step"] = to_whole(state["step"])
    files = {"model": weights, "optimizer": moments}
    if stepper.average is not None:
        files["average"] = {name: to_whole(tensor) for name, tensor in stepper.average.average.items()}
    return files


def put_snapshot(stepper: Stepper, files: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Put what :func:`take_snapshot` gave back into a stepper of the same recipe.

    Raises:
        ValueError: tensors that are missing, or that the model lacks.
    """
    there = stepper.plain.state_dict()
    _check_names(set(there), set(files["model"]))
    for name, tensor in there.items():
        copy_whole(tensor, files["model"][name])
    for name, parameter in stepper.parameters.items():
        state = stepper.inner_optimizer.state
        if f"{name}.step" not in files["optimizer"]:
            state.pop(parameter, None)
            continue
        for moment in MOMENTS:
            held = state[parameter].get(moment)
            if held is None:
                held = state[parameter][moment] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
            copy_whole(held, files["optimizer"][f"{name}.{moment}"])
        # AdamW's fused step wants its counter beside the parameter.
        state[parameter]["step"] = files["optimizer"][f"{name}.step"].to(parameter.device).clone()
    if stepper.average is not None:
        for name, tensor in stepper.average.average.items():
            copy_whole(tensor, files["average"][name])


def _check_names(wanted: set[str], found: set[str]) -> None:
    if wrong := sorted(wanted ^ found):
        side = "lacks" if wrong[0] in wanted else "holds"
        raise ValueError(f"the checkpoint {side} {wrong[0]!r}, unlike this recipe's model; was it changed by hand?")
