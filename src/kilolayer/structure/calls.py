"""Which module is running: calls of modules as a stack, kept by hooks that see every module."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from kilolayer.structure.names import modules_by_name
from kilolayer.structure.record import Call, Record
from kilolayer.structure.schemas import tensors_in


class CallStack:
    """Adds a :class:`Call` to the record for every run of a module that the model lists.

    Active as a context manager. A module that the model does not list, such as one in a Python list, counts as
    part of its caller.
    """

    def __init__(self, model: nn.Module, record: Record, *, find: Callable[[Tensor], int]):
        self._record = record
        self._find = find
        self._modules = modules_by_name(model)
        self._paths = {id(module): path for path, module in self._modules.items()}
        self._runs: dict[str, int] = {}
        self._open: list[int] = []
        self._handles: list[RemovableHandle] = []
        # What runs outside any module, as hooks on the model do, is the model's.
        record.calls.append(Call("", -1, None, 0))

    @property
    def current(self) -> int:
        """The call that is running."""
        return self._open[-1] if self._open else 0

    def __enter__(self) -> CallStack:
        # Hooks on every module, not global ones, which compiled models warn of.
        for module in self._modules.values():
            if isinstance(module, torch.jit.ScriptModule):
                continue  # takes no hooks; its operations are seen, and count as its caller's
            self._handles.append(module.register_forward_pre_hook(self._enter))
            self._handles.append(module.register_forward_hook(self._leave, always_call=True))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()

    def _enter(self, module: nn.Module, args: Any) -> None:
        path = self._paths.get(id(module))
        if path is None:
            return
        number = self._runs.get(path, 0)
        self._runs[path] = number + 1
        call = Call(path, number, self._open[-1] if self._open else None, len(self._record.operations))
        call.input = self._first_value(args)
        self._open.append(len(self._record.calls))
        self._record.calls.append(call)

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        path = self._paths.get(id(module))
        while path is not None and self._open:
            call = self._record.calls[self._open.pop()]
            call.last_operation = len(self._record.operations) - 1
            # Calls above it were left by an exception that the model caught.
            if call.path == path:
                call.output = self._first_value(output)
                return

    def _first_value(self, tree: Any) -> int | None:
        tensors = tensors_in(tree)
        return self._find(tensors[0]) if tensors else None
