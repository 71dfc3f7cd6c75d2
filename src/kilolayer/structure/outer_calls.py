"""What a model, or the part of it that is called from outside, is called with."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True)
class OuterCall:
    """A call of a module that no other module of the same model made.

    Attributes:
        module: the module.
        args: its positional inputs.
        kwargs: its keyword inputs.
    """

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def inputs(self) -> tuple[Any, ...] | dict[str, Any]:
        """A tuple of positional inputs, or a dictionary of keyword inputs where there are any of these."""
        if not self.kwargs:
            return self.args
        return dict(inspect.signature(self.module.forward).bind(*self.args, **self.kwargs).arguments)


def outer_calls(model: nn.Module, run: Callable[[], Any]) -> list[OuterCall]:
    """The calls that ``run`` makes of a model, or of parts of it where it calls them past the model, in order.

    Examples:
        >>> import torch
        >>> model = nn.ModuleDict({"body": nn.Sequential(nn.Linear(2, 3), nn.ReLU()), "head": nn.Linear(3, 1)})
        >>> calls = outer_calls(model, lambda: model["head"](model["body"](torch.zeros(4, 2))))
        >>> [type(one.module).__name__ for one in calls], tuple(calls[1].args[0].shape)
        (['Sequential', 'Linear'], (4, 3))
    """
    found: list[OuterCall] = []
    inside: list[nn.Module] = []

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not inside:
            found.append(OuterCall(module, args, kwargs))
        inside.append(module)

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        inside.pop()

    handles: list[Any] = []
    for module in model.modules():
        handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
        handles.append(module.register_forward_hook(leave, always_call=True))
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return found


def main_call(model: nn.Module, run: Callable[[], Any]) -> OuterCall | None:
    """The first of the outer calls that holds the most parameters; ``None`` where no module with any is called."""
    calls = [call for call in outer_calls(model, run) if _num_parameters(call)]
    return max(calls, key=_num_parameters, default=None)


def _num_parameters(call: OuterCall) -> int:
    return sum(parameter.numel() for parameter in call.module.parameters())
