"""What one forward pass showed, and which of a step's passes counts.

A pass begins where the model is called with gradients enabled. Of the passes since the last optimizer step the last
one that a backward pass went through counts: the last micro-batch under gradient accumulation, the attempt that
succeeded under a gradient scaler, and never an evaluation.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from kilolayer.monitor.hook import Hook
from kilolayer.monitor.statistics import Value

Place = tuple[Hashable, int]
"""A tap and which of its module's calls."""


class Pass:
    """The statistics of one forward and backward pass, by tap and call (from 0), in order of execution."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.activations: dict[Place, dict[str, Value]] = {}
        self.gradients: dict[Place, Value] = {}
        self.num_calls: dict[Hashable, int] = {}
        self.without_graph: set[Hashable] = set()


class PassKeeper:
    """Opens a pass when the model is called and says at the end of a step which one counts."""

    def __init__(self) -> None:
        self.current: Pass | None = None
        self._differentiated: Pass | None = None
        self._num_passes = 0
        self._model_records: bool | None = None

    def clear(self) -> None:
        """Forget the passes of a step."""
        self.current = self._differentiated = None

    def hook(self, model: nn.Module) -> RemovableHandle:
        """Watch the model's calls; before any hook that reads tensors."""
        return model.register_forward_pre_hook(ModelEntered(self))

    def hook_end(self, model: nn.Module) -> RemovableHandle:
        """Watch the ends of the model's calls; after any hook that reads tensors."""
        return model.register_forward_hook(ModelLeft(self), always_call=True)

    def enter_model(self) -> None:
        """The model is called: a new pass, unless gradients are off or a checkpoint repeats what was read."""
        if is_in_backward() and self.current is not None:
            return
        self._model_records = torch.is_grad_enabled()
        if self._model_records:
            self._open()

    def leave_model(self) -> None:
        """The call is over."""
        self._model_records = None

    def is_repetition(self) -> bool:
        """Whether a module runs only because a checkpoint recomputes it for the backward pass."""
        return is_in_backward() and self._model_records is not True

    def pass_in_progress(self) -> Pass | None:
        """The pass a module that runs now belongs to; ``None`` in an evaluation.

        Inside the model's own call gradients may be off for a while: a reentrant checkpoint, a frozen part.
        Modules called on their own, past the model, begin a pass after each backward pass.
        """
        if self._model_records is None and torch.is_grad_enabled():
            if self.current is None or self.current is self._differentiated:
                self._open()
            return self.current
        return self.current if self._model_records else None

    def add_gradient(self, owner: Pass, place: Place, value: Value) -> None:
        """Keep the statistic of a gradient that reached a tensor of this pass."""
        owner.gradients[place] = value
        if self._differentiated is None or owner.number > self._differentiated.number:
            self._differentiated = owner

    def counting(self) -> Pass | None:
        """The pass that counts for the step, if there was any."""
        return self._differentiated or self.current

    def _open(self) -> None:
        self._num_passes += 1
        self.current = Pass(self._num_passes)


class ModelEntered(Hook):
    """Hook on the model: a pass begins."""

    def __init__(self, keeper: PassKeeper):
        self.keeper = keeper

    def __call__(self, module: nn.Module, args: Any) -> None:
        self.keeper.enter_model()


class ModelLeft(Hook):
    """Hook on the model: its call is over, with a result or an exception."""

    def __init__(self, keeper: PassKeeper):
        self.keeper = keeper

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        self.keeper.leave_model()


def is_in_backward() -> bool:
    """Whether the autograd engine is running in this thread."""
    return torch._C._current_graph_task_id() != -1
