"""Change single operations of somebody's ``forward`` while it runs.

A ``TorchFunctionMode`` stands above autograd: whatever an edit returns in an operation's place, the gradient follows.
Hooks tell in which module the code runs. The user's file stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from kilolayer.remedies.remedy import AnySetup, SetupLike, changed


@dataclass
class Frame:
    """A module whose code runs: its path, the tensor it was given and the number of sums it has done."""

    path: str
    given: Tensor | None


class Running:
    """The modules whose code runs, the innermost last; the model's own path is ``""``, and so is the loss's."""

    def __init__(self, model: nn.Module):
        self._frames: list[Frame] = []
        for path, module in model.named_modules():
            module.register_forward_pre_hook(partial(self._enter, path), with_kwargs=True)
            module.register_forward_hook(self._leave, always_call=True)

    @property
    def frame(self) -> Frame:
        """The innermost module."""
        return self._frames[-1] if self._frames else Frame("", None)

    def _enter(self, path: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        given = next((one for one in (*args, *kwargs.values()) if isinstance(one, Tensor)), None)
        self._frames.append(Frame(path, given))

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._frames:
            self._frames.pop()


@dataclass(frozen=True)
class Call:
    """An operation that is about to run."""

    name: str
    frame: Frame
    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def path(self) -> str:
        """The module whose code runs it."""
        return self.frame.path

    @property
    def tensor(self) -> Any:
        """The first argument."""
        return self.args[0] if self.args else self.kwargs.get("input")

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run it, with other leading arguments or other keywords."""
        return self.func(*args, *self.args[len(args) :], **{**self.kwargs, **kwargs})

    def run_on(self, tensor: Tensor) -> Any:
        """Run it on another tensor."""
        if self.args:
            return self.run(tensor)
        return self.func(**{**self.kwargs, "input": tensor})


Change = Callable[[Call], Any]
"""What an edit does at each operation: returns a result, mostly ``call.run()``."""


class Editing(TorchFunctionMode):
    """Hands every operation to an edit."""

    def __init__(self, running: Running, change: Change, *, on_start: Callable[[], None] | None = None):
        super().__init__()
        self._running = running
        self._change = change
        self._on_start = on_start
        self._depth = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name == "__get__":
            return func(*args, **(kwargs or {}))
        return self._change(Call(name, self._running.frame, func, args, kwargs or {}))

    def around(self, function: Callable[..., Any], *, is_start: bool) -> Callable[..., Any]:
        """The function with its operations edited; where it runs inside another edited one, they are edited once.

        Args:
            function: runs operations.
            is_start: whether a pass begins with it.
        """

        def edited(*args: Any, **kwargs: Any) -> Any:
            if self._depth:
                return function(*args, **kwargs)
            if is_start and self._on_start is not None:
                self._on_start()
            self._depth += 1
            try:
                with self:
                    return function(*args, **kwargs)
            finally:
                self._depth -= 1

        return edited


def edit_operations(setup: AnySetup, change: Change, *, on_start: Callable[[], None] | None = None) -> AnySetup:
    """The set-up with an edit at every operation of its model and its loss.

    Args:
        setup: nobody else's.
        change: what is done at each operation.
        on_start: called when a pass begins.
    """
    editing = Editing(Running(setup.model), change, on_start=on_start)
    model: Any = setup.model
    model.forward = editing.around(model.forward, is_start=setup.compute_loss is None)
    fields: dict[str, Any] = {}
    for name in ("loss_fn", "compute_loss"):
        if (function := getattr(setup, name)) is not None:
            fields[name] = editing.around(function, is_start=name == "compute_loss")
    return changed(setup, **fields)


def edit_calls(setup: AnySetup, names: Iterable[str], path: str | None, do: Change) -> AnySetup:
    """Edit the operations of these names in the code of one module (``None``: of any) and leave the others be."""
    wanted = frozenset(names)

    def change(call: Call) -> Any:
        return do(call) if call.name in wanted and (path is None or call.path == path) else call.run()

    return edit_operations(setup, change)


def rehearse(setup: SetupLike, change: Change) -> None:
    """One pass of a set-up with an edit that only looks; buffers, hooks and ``forward`` are as before behind it.

    The random state moves on.
    """
    model: Any = setup.model
    hooks = [(module, dict(module._forward_pre_hooks), dict(module._forward_hooks)) for module in model.modules()]
    kept = [
        (module, dict(module._forward_pre_hooks_with_kwargs), dict(module._forward_hooks_always_called))
        for module in model.modules()
    ]
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    forward = model.__dict__.get("forward")
    try:
        with torch.enable_grad():
            edited = edit_operations(setup, change)
            edited.compute(edited.batch)
    finally:
        if forward is None:
            model.__dict__.pop("forward", None)
        else:
            model.forward = forward
        for module, pre, post in hooks:
            _refill(module._forward_pre_hooks, pre)
            _refill(module._forward_hooks, post)
        for module, pre, post in kept:
            _refill(module._forward_pre_hooks_with_kwargs, pre)
            _refill(module._forward_hooks_always_called, post)
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)


def _refill(target: Any, content: dict[Any, Any]) -> None:
    target.clear()
    target.update(content)
