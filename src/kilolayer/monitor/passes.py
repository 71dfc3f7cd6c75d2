"""What one forward pass showed, and which of a step's passes count.

A pass begins where the model is called with gradients enabled. Passes between two backward passes are one group: the
two views of a Siamese network, a discriminator's real and generated batch. Of the groups since the last optimizer
step the last one that a backward pass went through counts, and of its passes those that the backward pass reached:
the last micro-batch under gradient accumulation, the attempt that succeeded under a gradient scaler, and never an
evaluation. With several optimizers that holds for the stretch of each.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterable
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from kilolayer.monitor.hook import Hook
from kilolayer.monitor.statistics import Value

Place = tuple[Hashable, int]
"""A tap and which of its module's calls."""


class Pass:
    """The statistics of one forward and backward pass, by tap and call (from 0), in order of execution.

    ``weights`` and ``means`` are kept where processes merge: entries and pairs of samples behind each statistic.
    """

    def __init__(self, number: int, group: int) -> None:
        self.number = number
        self.group = group
        self.activations: dict[Place, dict[str, Value]] = {}
        self.gradients: dict[Place, Value] = {}
        self.weights: dict[Place, tuple[float, float]] = {}
        self.means: dict[Place, Value] = {}
        self.num_calls: dict[Hashable, int] = {}
        self.without_graph: set[Hashable] = set()


def join(passes: Iterable[Pass]) -> Pass:
    """Several passes as one, calls of a module numbered through."""
    first, *rest = passes
    if not rest:
        return first
    joint = Pass(first.number, first.group)
    for part in (first, *rest):
        for name in ("activations", "gradients", "weights", "means"):
            found = {(tap, joint.num_calls.get(tap, 0) + call): v for (tap, call), v in getattr(part, name).items()}
            getattr(joint, name).update(found)
        for tap, count in part.num_calls.items():
            joint.num_calls[tap] = joint.num_calls.get(tap, 0) + count
    return joint


class PassKeeper:
    """Opens a pass when the model is called and says at the end of a step which ones count."""

    def __init__(self) -> None:
        self.current: Pass | None = None
        self.runs_compiled = False
        self._passes: list[Pass] = []
        self._differentiated: int | None = None
        self._marked: dict[Hashable, int] = {}
        self._num_passes = 0
        self._num_groups = 0
        self._model_records: bool | None = None

    def clear(self) -> None:
        """Forget the passes of a step."""
        self.current = self._differentiated = None
        self._passes, self._marked = [], {}

    def mark(self, key: Hashable) -> None:
        """An optimizer stepped, though the step goes on: the group that counts so far counts in the end too."""
        if self._differentiated is not None:
            self._marked[key] = self._differentiated

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
        self.runs_compiled = self.runs_compiled or _is_called_by_compiler(sys._getframe())
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
            if self.current is None or self.current.group == self._differentiated:
                self._open()
            return self.current
        return self.current if self._model_records else None

    def add_gradient(self, owner: Pass, place: Place, value: Value) -> None:
        """Keep the statistic of a gradient that reached a tensor of this pass."""
        owner.gradients[place] = value
        if self._differentiated is None or owner.group > self._differentiated:
            self._differentiated = owner.group
            kept = set(self._marked.values())
            self._passes = [one for one in self._passes if one.group >= owner.group or one.group in kept]

    def counting(self) -> Pass | None:
        """The passes that count for the step as one, if there were any."""
        groups = {self._differentiated, *self._marked.values()}
        counted = [one for one in self._passes if one.group in groups and one.gradients]
        return join(counted) if counted else self.current

    def _open(self) -> None:
        self._num_passes += 1
        if self.current is None or self.current.group == self._differentiated:
            self._num_groups += 1
        self.current = Pass(self._num_passes, self._num_groups)
        self._passes.append(self.current)


class ModelEntered(Hook):
    """Hook on the model: a pass begins."""

    def __init__(self, keeper: PassKeeper):
        self.keeper = keeper

    def __call__(self, module: nn.Module, args: Any) -> None:
        if not torch.compiler.is_compiling():
            self.keeper.enter_model()


class ModelLeft(Hook):
    """Hook on the model: its call is over, with a result or an exception."""

    def __init__(self, keeper: PassKeeper):
        self.keeper = keeper

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        if not torch.compiler.is_compiling():
            self.keeper.leave_model()


def is_in_backward() -> bool:
    """Whether the autograd engine is running in this thread."""
    return torch._C._current_graph_task_id() != -1


def _is_called_by_compiler(frame: FrameType | None) -> bool:
    """Whether the call came through a wrapper of ``torch.compile``, as one around the whole model leaves no trace
    in the model."""
    while frame is not None:
        if frame.f_code.co_filename.endswith(("_dynamo/eval_frame.py", "_dynamo\\eval_frame.py")):
            return True
        frame = frame.f_back
    return False
