"""Keep an optimizer in step with a model whose parameters were rescaled, replaced, added or dropped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer, RMSprop

POWERS = {
    "exp_avg": -1, "momentum_buffer": -1, "exp_inf": -1, "grad_avg": -1, "prev": -1, "mu_product": 0,
    "exp_avg_sq": -2, "max_exp_avg_sq": -2, "square_avg": -2, "sum": -2,
    "ax": 1, "step_size": 1, "acc_delta": 2,
}  # fmt: skip
"""With what power of a parameter's factor the entries of an optimizer's state grow, by torch.optim's names."""


@torch.no_grad()
def rescale_state(optimizer: Optimizer, parameter: Tensor, factor: float) -> None:
    """Carry what an optimizer remembers over to a parameter that was multiplied with ``factor``.

    The gradient of the rescaled parameter is the old one divided by ``factor``, and so are its averages.
    """
    state = optimizer.state.get(parameter)
    if not state:
        return
    for name, value in state.items():
        # RMSprop's momentum holds steps that are divided by the gradient's size already.
        power = 0 if isinstance(optimizer, RMSprop) and name == "momentum_buffer" else POWERS.get(name, 0)
        if isinstance(value, Tensor) and value.shape == parameter.shape and power:
            value.mul_(factor**power)


def as_optimizers(given: Any, model: nn.Module) -> tuple[Optimizer, ...]:
    """The optimizers that a caller gave: none, one or several.

    Raises:
        TypeError: anything else.
        ValueError: one that holds none of the model's parameters.
    """
    if given is None:
        return ()
    found = tuple(given) if isinstance(given, (list, tuple)) else (given,)
    own = {id(parameter) for parameter in model.parameters()}
    for one in found:
        if not isinstance(one, Optimizer):
            raise TypeError(f"optimizer must be a torch.optim.Optimizer or several in a list, got {type(one).__name__}")
        if not any(id(parameter) in own for group in one.param_groups for parameter in group["params"]):
            raise ValueError("the optimizer trains none of this model's parameters; pass the one that was built for it")
    return found


def repoint(
    optimizers: Sequence[Optimizer],
    old: Mapping[str, nn.Parameter],
    new: Mapping[str, nn.Parameter],
    *,
    origins: Mapping[str, str],
) -> None:
    """Let a model's optimizers train the parameters it has now.

    Those that went are dropped with their state; a new one joins the group of the old one it comes from, or the
    first group of the first optimizer. New ones start without state.

    Args:
        optimizers: hold parameters of the model.
        old, new: the model's parameters by name, before and now.
        origins: new name -> the old name whose group it joins.
    """
    all_groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    groups = {id(parameter): group for group in all_groups for parameter in group["params"]}
    kept = {id(parameter) for parameter in new.values()}
    gone = {id(parameter) for parameter in old.values() if id(parameter) not in kept}
    for group in all_groups:
        group["params"] = [parameter for parameter in group["params"] if id(parameter) not in gone]
    for optimizer in optimizers:
        for parameter in [one for one in optimizer.state if id(one) in gone]:
            del optimizer.state[parameter]
    was_there = {id(parameter) for parameter in old.values()}
    for name, parameter in new.items():
        if id(parameter) in was_there:
            continue
        origin = old.get(origins.get(name, name))
        if origin is not None and id(origin) not in groups:
            continue  # the old one was not trained either
        group = all_groups[0] if origin is None else groups[id(origin)]
        group["params"].append(parameter)
