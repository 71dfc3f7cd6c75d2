"""Record the operations of one forward pass, with the module each ran in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from kilolayer.structure import ops
from kilolayer.structure.calls import CallStack
from kilolayer.structure.factors import read_mean
from kilolayer.structure.names import clean_name
from kilolayer.structure.record import MERGE, Operation, Record, Ref, Source, Value
from kilolayer.structure.schemas import base_name, name_arguments, tensors_in, written_tensors
from kilolayer.structure.values import ValueTable


class Recorder(TorchDispatchMode):
    """Runs a model and fills a :class:`Record`.

    Args:
        model: its parameters, buffers and modules are known by name.
        inputs: whatever the model is called with; the tensors in it are the model's inputs.
        before_write: called with each tensor that is about to be overwritten and that was there before the pass.
    """

    supports_higher_order_operators = True

    def __init__(self, model: nn.Module, inputs: Any, *, before_write: Callable[[Tensor], None]):
        super().__init__()
        self.record = Record()
        self._model = model
        self._before_write = before_write
        self._values = ValueTable(self._add_unknown, self._add_merge)
        self._calls = CallStack(model, self.record, find=self._values.find)
        for name, parameter in model.named_parameters():
            self._add_source(parameter, "parameter", clean_name(name))
        for name, buffer in model.named_buffers():
            self._add_source(buffer, "buffer", clean_name(name))
        for position, tensor in enumerate(tensors_in(inputs)):
            self._add_source(tensor, "input", str(position))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # What True asks for imports the compiler, which takes seconds; no compiled code runs under the recorder.
        return False

    def run(self, *args: Any, **kwargs: Any) -> Record:
        """Call the model, and return what it did."""
        # The mode is entered again inside itself, for composite operations; the hooks must not be.
        with self._calls, self:
            outputs = self._model(*args, **kwargs)
        self.record.outputs = [self._values.find(tensor) for tensor in tensors_in(outputs)]
        return self.record

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, torch._ops.OpOverload) and func.namespace != "prim":
            with self:  # in inference mode, composite operations arrive whole
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        arguments = name_arguments(func, args, kwargs)
        written = written_tensors(func, arguments)
        for tensor in written:
            if not self._values.is_made_here(tensor):
                self._before_write(tensor)
        refs = {name: self._with_refs(argument) for name, argument in arguments.items()}
        result = func(*args, **kwargs)
        self._keep(func, refs, tensors_in(result), written)
        return result

    def _with_refs(self, argument: Any) -> Any:
        if isinstance(argument, Tensor):
            return Ref(self._values.find(argument))
        if isinstance(argument, (list, tuple)):
            return [self._with_refs(one) for one in argument]
        return argument

    def _keep(self, func: Any, refs: dict[str, Any], returned: list[Tensor], written: list[Tensor]) -> None:
        namespace, name = base_name(func)
        is_random = torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())
        operation = Operation(name, namespace, refs, [], self._calls.current, is_random)
        number = len(self.record.operations)
        self.record.operations.append(operation)
        depends = any(self.record.values[ref.value].depends_on_input for ref in refs_in(refs))
        silent = [tensor for tensor in written if all(tensor is not one for one in returned)]
        for position, tensor in enumerate(returned + silent):
            value = self._add(tensor, number, position, depends=depends)
            operation.outputs.append(value)
            if not depends and (written or not (name in ops.WHOLE_VIEWS and tensor.is_floating_point())):
                self.record.values[value].mean = read_mean(tensor)
            if any(tensor is one for one in written):
                self._values.write(tensor, value)
            else:
                self._values.put(tensor, value)

    def _add(self, tensor: Tensor, operation: int | None, output: int, *, depends: bool) -> int:
        is_float = tensor.is_floating_point() or tensor.is_complex()
        value = Value(operation, output, tuple(tensor.shape), is_float, depends)
        self.record.values.append(value)
        return len(self.record.values) - 1

    def _add_source(self, tensor: Tensor, source: Source, name: str | None) -> int:
        value = self._add(tensor, None, 0, depends=source == "input")
        entry = self.record.values[value]
        entry.source, entry.name = source, name
        entry.tensor = tensor if source in ("parameter", "buffer") else None
        if source == "unknown":
            entry.mean = read_mean(tensor)
        self._values.put(tensor, value, made_here=False)
        return value

    def _add_unknown(self, tensor: Tensor) -> int:
        # A leaf that is trained, though the model does not list it, as in a Python list of layers.
        return self._add_source(tensor, "parameter" if tensor.requires_grad and tensor.is_leaf else "unknown", None)

    def _add_merge(self, tensor: Tensor, old: int | None, written: int) -> int:
        refs = {"written": Ref(written)} if old is None else {"old": Ref(old), "written": Ref(written)}
        depends = any(self.record.values[ref.value].depends_on_input for ref in refs.values())
        value = self._add(tensor, len(self.record.operations), 0, depends=depends)
        if not depends:
            self.record.values[value].mean = read_mean(tensor)
        self.record.operations.append(Operation(MERGE, "", dict(refs), [value], self._calls.current))
        return value


def is_recording() -> bool:
    """Whether this thread runs a model to record it: whatever is done to its tensors would count as the model's."""
    return any(isinstance(mode, Recorder) for mode in _get_current_dispatch_mode_stack())


def refs_in(arguments: Any) -> list[Ref]:
    """The tensors among the arguments of an operation, in order."""
    if isinstance(arguments, Ref):
        return [arguments]
    if isinstance(arguments, dict):
        return [ref for argument in arguments.values() for ref in refs_in(argument)]
    if isinstance(arguments, (list, tuple)):
        return [ref for argument in arguments for ref in refs_in(argument)]
    return []
