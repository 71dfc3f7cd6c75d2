"""All values of one step: what every operation puts out, and the gradient of the loss that comes back to it.

A ``TorchDispatchMode`` (the recorder of :mod:`kilolayer.structure`) sees every operation, in modules and out of them.
Its results are described at once and not kept. Autograd numbers its nodes; an operation and its node share the
number, and a hook on the node reads the gradient. The same number, read while the backward pass runs, tells which
operation of the forward pass a value that is not finite comes from.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from kilolayer.check.attention import describe_attention
from kilolayer.check.losses import LOSS_OPERATIONS, LossInput, describe_loss
from kilolayer.check.values import Stats, describe
from kilolayer.monitor import statistics
from kilolayer.structure import ops
from kilolayer.structure.record import Record
from kilolayer.structure.recorder import Recorder, refs_in
from kilolayer.structure.schemas import base_name, tensors_in

UNSEEN = frozenset({"detach", "alias", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})
"""Operations whose results are nobody's: copies that autograd keeps, and memory that is still to be filled."""


@dataclass
class Pass:
    """What one forward and backward pass showed."""

    record: Record
    stats: dict[int, Stats]
    grads: dict[int, float]
    loss_call: int
    loss: float
    loss_value: int
    loss_shape: tuple[int, ...]
    has_graph: bool
    reached: set[int]
    backward_fault: tuple[str, str] | None
    unregistered: list[Tensor]
    losses: list[LossInput]
    attentions: list[dict[str, Any]]
    output_values: list[int]

    def values_in_loss(self) -> set[int]:
        """The values that the loss was computed from, whether a gradient comes back or not."""
        seen, open_values = set(), [self.loss_value]
        while open_values:
            value = open_values.pop()
            entry = self.record.values[value]
            if value in seen:
                continue
            seen.add(value)
            if entry.operation is not None:
                open_values += [ref.value for ref in refs_in(self.record.operations[entry.operation].arguments)]
        return seen


class Probe(Recorder):
    """Runs a set-up's loss forward and backward and describes what it sees.

    Args:
        model: whose parameters and modules are known by name.
        batch: its tensors are the pass's inputs.
        before_write: called with each tensor that is about to be overwritten and that was there before the pass.
    """

    def __init__(self, model: nn.Module, batch: Any, *, before_write: Callable[[Tensor], None]):
        self.unregistered: list[Tensor] = []
        self._batch_ids = {id(tensor) for tensor in tensors_in(batch)}
        super().__init__(model, batch, before_write=before_write)
        self._stats: dict[int, Stats] = self._describe_inputs(tensors_in(batch))
        self._sequence: dict[int, tuple[int, int]] = {}
        self._path_of_sequence: dict[int, tuple[str, str]] = {}
        self._last_sequence = -1
        self._unit_dim: dict[int, int] = {}
        self._is_backward = False
        self._backward_fault: tuple[str, str] | None = None
        self._output_values: list[int] = []
        self._losses: list[LossInput] = []
        self._attentions: list[dict[str, Any]] = []
        self._first_after_model = 0

    def _describe_inputs(self, tensors: list[Tensor]) -> dict[int, Stats]:
        values = [value for value, entry in enumerate(self.record.values) if entry.source == "input"]
        with torch.no_grad():
            return {
                value: describe(tensor, "input", unit_dim=-1)
                for value, tensor in zip(values, tensors, strict=True)
                if statistics.is_readable(tensor)
            }

    # ------------------------------------------------------------------ the pass
    def run_loss(self, compute: Callable[[], Tensor]) -> Pass:
        """Compute the loss, go back through it, and return what was seen."""
        self._last_sequence = torch._C._autograd._get_sequence_nr() - 1
        handle = self._model.register_forward_hook(self._model_left)
        try:
            with training_as_it_is(self._model), self._calls, self:
                loss = compute()
            grads, reached = self._go_back(loss)
        finally:
            handle.remove()
        value = self._values.find(loss)
        return Pass(
            self.record,
            self._stats,
            grads,
            self._first_after_model,
            float(loss.detach()),
            value,
            tuple(loss.shape),
            loss.requires_grad,
            reached,
            self._backward_fault,
            self.unregistered,
            self._losses,
            self._attentions,
            self._output_values,
        )

    def _model_left(self, module: nn.Module, args: Any, output: Any) -> None:
        self._first_after_model = len(self.record.operations)
        self._output_values = [self._values.find(tensor) for tensor in tensors_in(output)]

    def _go_back(self, loss: Tensor) -> tuple[dict[int, float], set[int]]:
        """Gradients' RMS by value, and the leaves (by id) that the graph ends in."""
        if not loss.requires_grad:
            return {}, set()
        grads: dict[int, float] = {}
        values = {sequence: (value, output) for value, (sequence, output) in self._sequence.items()}
        handles, reached = [], set()
        for node in nodes_behind(loss):
            variable = getattr(node, "variable", None)
            if variable is not None:
                reached.add(id(variable))
            elif (found := values.get(node._sequence_nr())) is not None:
                handles.append(node.register_prehook(partial(_read_gradient, grads, *found)))
        self._is_backward = True
        try:
            with self:
                loss.backward()
        finally:
            self._is_backward = False
            for handle in handles:
                handle.remove()
        return grads, reached

    # ------------------------------------------------------------------ operations
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not self._is_backward:
            result = super().__torch_dispatch__(func, types, args, kwargs)
            self._look_closer(base_name(func)[1], args, kwargs or {})
            return result
        result = func(*args, **(kwargs or {}))
        if self._backward_fault is None:
            self._look_for_fault(func, args, result)
        return result

    def _look_closer(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Operations whose result says less than what they were given."""
        if name in LOSS_OPERATIONS:
            self._look_at_loss(name, args)
        elif name in ops.ATTENTION:
            with _disable_current_modes(), torch.no_grad():
                path = self.record.calls[self._calls.current].path
                self._attentions.append({"path": path, **describe_attention(args, kwargs)})

    def _look_at_loss(self, name: str, args: tuple[Any, ...]) -> None:
        own, target = self._values.find(args[0]), self._values.find(args[1])
        with _disable_current_modes(), torch.no_grad():
            self._losses.append(describe_loss(name, args, value=own, target=target))

    def _look_for_fault(self, func: Any, args: Any, result: Any) -> None:
        name = base_name(func)[1]
        with _disable_current_modes():
            if name in UNSEEN or all(is_finite(one) for one in tensors_in(result)):
                return
            finite = all(is_finite(one) for one in tensors_in(list(args)))
        node = torch._C._current_autograd_node()
        sequence = -1 if node is None else node._sequence_nr()
        if finite:
            self._backward_fault = self._path_of_sequence.get(sequence, ("", name))

    def _keep(self, func: Any, refs: dict[str, Any], returned: list[Tensor], written: list[Tensor]) -> None:
        super()._keep(func, refs, returned, written)
        operation = self.record.operations[-1]
        sequence = torch._C._autograd._get_sequence_nr() - 1
        path = self.record.calls[operation.call].path
        if sequence > self._last_sequence:
            self._last_sequence = sequence
            self._path_of_sequence[sequence] = (path, operation.name)
            for output, value in enumerate(operation.outputs):
                self._sequence[value] = (sequence, output)
        if operation.name in UNSEEN:
            return
        silent = [tensor for tensor in written if all(tensor is not one for one in returned)]
        inputs = [ref.value for ref in refs_in(operation.arguments)]
        with _disable_current_modes(), torch.no_grad():
            for tensor, value in zip(returned + silent, operation.outputs, strict=True):
                self._describe(operation.name, inputs, tensor, value)

    def _describe(self, name: str, inputs: list[int], tensor: Tensor, value: int) -> None:
        if not statistics.is_readable(tensor):
            return
        if name in ops.VIEWS:
            # The same numbers, or part of them.
            if inputs and inputs[0] in self._stats:
                self._stats[value] = self._stats[inputs[0]]
                if self.record.values[inputs[0]].shape == self.record.values[value].shape:
                    self._unit_dim[value] = self._unit_dim.get(inputs[0], -1)
            return
        dim = self._channels(name, inputs, value)
        self._unit_dim[value] = dim
        self._stats[value] = describe(tensor, name, unit_dim=dim)

    def _channels(self, name: str, inputs: list[int], value: int) -> int:
        """The dimension that counts units: 1 behind a convolution or a pool of one, else the last."""
        if "conv" in name or "pool" in name or "batch_norm" in name or "group_norm" in name:
            return 1 if len(self.record.values[value].shape) >= 2 else -1
        shape = self.record.values[value].shape
        return next((self._unit_dim[one] for one in inputs
                     if one in self._unit_dim and self.record.values[one].shape == shape), -1)  # fmt: skip

    def _add_unknown(self, tensor: Tensor) -> int:
        value = super()._add_unknown(tensor)
        if self.record.values[value].source == "parameter" and id(tensor) not in self._batch_ids:
            self.unregistered.append(tensor)
        return value


def _read_gradient(grads: dict[int, float], value: int, output: int, outputs: Any) -> None:
    grad = outputs[output] if output < len(outputs) else None
    if isinstance(grad, Tensor) and statistics.is_readable(grad):
        with _disable_current_modes():
            found = statistics.rms(grad.detach())
            grads[value] = found if isinstance(found, float) else float(found[0]) * found[1]


def nodes_behind(loss: Tensor) -> Iterator[Any]:
    """The nodes of the graph of a loss, each once."""
    seen, open_nodes = set(), [loss.grad_fn]
    while open_nodes:
        node = open_nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        open_nodes += [one for one, _ in node.next_functions]


def is_finite(tensor: Tensor) -> bool:
    """Whether every entry is; of integers and the like, always."""
    if not statistics.is_readable(tensor):
        return True
    low, high = torch.aminmax(tensor.detach())
    return bool(torch.isfinite(low) & torch.isfinite(high))


@contextmanager
def training_as_it_is(model: nn.Module) -> Iterator[None]:
    """Gradients on, compiled parts run eagerly, and no fused fast path: otherwise as the user trains."""
    fast_path = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as stack:
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast_path)
        torch.backends.mha.set_fastpath_enabled(False)
        stack.enter_context(torch.enable_grad())
        if "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield
