"""Edits of an optimizer, in place, so that it keeps its kind, its options and its hooks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from kilolayer.remedies.remedy import SetupLike, Unsuitable, optimizer_of


def held_by(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Everything an optimizer trains."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def scale_lr(setup: SetupLike, factor: float) -> tuple[float, float]:
    """Multiply every learning rate, and what a scheduler starts from; the first group's before and after."""
    optimizer = optimizer_of(setup)
    if not all("lr" in group for group in optimizer.param_groups):
        raise Unsuitable(f"{type(optimizer).__name__} has no learning rate")
    before = float(optimizer.param_groups[0]["lr"])
    for group in optimizer.param_groups:
        for key in ("lr", "initial_lr"):
            if key in group:
                group[key] = group[key] * factor
    base = getattr(setup.scheduler, "base_lrs", None)
    if isinstance(base, list):
        base[:] = [lr * factor for lr in base]
    return before, before * factor


def warm_up(setup: SetupLike, num_steps: int) -> None:
    """Let the learning rate grow linearly over the first steps, whatever a scheduler does beside it."""
    optimizer = optimizer_of(setup)
    done = 0
    kept: list[Any] = []

    def lower(*_: Any) -> None:
        nonlocal kept
        kept = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * min(1.0, (done + 1) / num_steps)

    def restore(*_: Any) -> None:
        nonlocal done
        done += 1
        for group, lr in zip(optimizer.param_groups, kept, strict=True):
            group["lr"] = lr

    optimizer.register_step_pre_hook(lower)
    optimizer.register_step_post_hook(restore)


def clip(setup: SetupLike, max_norm: float) -> None:
    """Clip the norm of all gradients before each step."""
    optimizer = optimizer_of(setup)

    def before_step(*_: Any) -> None:
        nn.utils.clip_grad_norm_(held_by(optimizer), max_norm)

    optimizer.register_step_pre_hook(before_step)


def clip_anew(setup: SetupLike, max_norm: float) -> None:
    """Put each gradient back as it came out of the backward pass, whatever was done to it, and clip to this norm.

    Raises:
        Unsuitable: a loss scaler, whose gradients are not the loss's.
    """
    if setup.scaler is not None:
        raise Unsuitable("gradients are scaled by a GradScaler, so what they were before clipping is not known")
    optimizer = optimizer_of(setup)
    raw: dict[int, Tensor] = {}

    def note(parameter: Tensor) -> None:
        if parameter.grad is not None:
            raw[id(parameter)] = parameter.grad.detach().clone()

    def before_step(*_: Any) -> None:
        for parameter in held_by(optimizer):
            if parameter.grad is not None and id(parameter) in raw:
                parameter.grad.copy_(raw[id(parameter)])
        nn.utils.clip_grad_norm_(held_by(optimizer), max_norm)

    for parameter in held_by(optimizer):
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(note)
    optimizer.register_step_pre_hook(before_step)


def forget_gradients_after_step(setup: SetupLike) -> None:
    """Drop every gradient behind each step, as ``zero_grad`` in front of the next one would."""
    optimizer = optimizer_of(setup)

    def after_step(*_: Any) -> None:
        for parameter in (*held_by(optimizer), *setup.model.parameters()):
            parameter.grad = None

    optimizer.register_step_post_hook(after_step)


def add_parameters(setup: SetupLike, parameters: Iterable[Tensor]) -> int:
    """Give the optimizer parameters it does not hold, under its default options; how many.

    Tensors that are not the model's are dropped where the optimizer holds nothing else: it was built for another model.
    """
    optimizer = optimizer_of(setup)
    own = {id(parameter) for parameter in setup.model.parameters()}
    held = {id(parameter) for parameter in held_by(optimizer)}
    new = [one for one in dict.fromkeys(parameters) if id(one) not in held]
    if not new:
        return 0
    first = optimizer.param_groups[0]
    if not held & own and len(optimizer.param_groups) == 1:
        first["params"] = new
        optimizer.state.clear()
    else:
        options = {key: value for key, value in first.items() if key not in ("params", "param_names")}
        options.update({key: value for key, value in optimizer.defaults.items() if not _is_required(value)})
        optimizer.add_param_group({**options, "params": new})
    return len(new)


def _is_required(value: Any) -> bool:
    return not isinstance(value, (int, float, bool, tuple, str, Tensor, type(None)))


def usual_norm(values: Iterable[float | None]) -> float:
    """A norm to clip to: the gradient's usual one, 1 where nobody measured it."""
    known = sorted(value for value in values if value is not None and math.isfinite(value) and value > 0)
    return known[len(known) // 2] if known else 1.0


def each_group(setup: SetupLike, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the options of every group, and the defaults with them."""
    optimizer = optimizer_of(setup)
    for group in (*optimizer.param_groups, optimizer.defaults):
        change(group)
