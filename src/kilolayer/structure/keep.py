"""Run a model and leave it as found: flags, attributes, tensors, random state, hooks."""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kilolayer.structure.schemas import tensors_in


class Snapshots:
    """Copies of memory taken just before it is first overwritten, to be put back."""

    def __init__(self) -> None:
        self._saved: dict[int, tuple[Any, Any]] = {}

    def save(self, tensor: Tensor) -> None:
        """Copy the tensor's whole storage, unless that was done before or there is no data in it."""
        if tensor.is_meta or type(tensor) not in (Tensor, nn.Parameter, nn.Buffer):
            return
        storage = tensor.untyped_storage()
        if storage._cdata not in self._saved:
            self._saved[storage._cdata] = (storage, storage.clone())

    def restore(self) -> None:
        """Put every copy back."""
        for storage, saved in self._saved.values():
            if storage.nbytes() != saved.nbytes():
                storage.resize_(saved.nbytes())
            storage.copy_(saved)
        self._saved.clear()


class SavedAside:
    """Keeps what autograd saves for a backward pass, which holds numbers in its place: no cycle, and no other hook."""

    def __init__(self) -> None:
        self._saved: list[Tensor] = []

    def pack(self, tensor: Tensor) -> int:
        """Put it aside."""
        self._saved.append(tensor)
        return len(self._saved) - 1

    def clear(self) -> None:
        """Let everything go: the graph that holds the numbers holds this too, in a circle that nobody else opens."""
        self._saved.clear()

    def unpack(self, number: int) -> Tensor:
        """Bring it back."""
        return self._saved[number]


@contextmanager
def collector_paused() -> Iterator[None]:
    """Within, Python looks for no reference cycles: the many small objects of a record would set it off again and
    again, and each time it walks through everything the process holds."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def evaluated(model: nn.Module, inputs: Any) -> Iterator[Snapshots]:
    """Within, the model is in evaluation mode with gradients on; behind, everything is as it was.

    ``train()`` and ``eval()`` are not called: models override them with side effects, such as merging weights.
    Tensors are put back as far as the snapshots that the caller takes go.
    """
    modules = list(model.modules())
    attributes = [(module, module.training, dict(vars(module)), _contents(module)) for module in modules]
    snapshots = Snapshots()
    fast_path = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as stack:
        stack.callback(_restore_attributes, attributes)
        stack.callback(snapshots.restore)
        stack.enter_context(_random_state(_cuda_devices(model, inputs)))
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast_path)
        # The fast path runs a whole encoder layer as one operation.
        torch.backends.mha.set_fastpath_enabled(False)
        stack.enter_context(torch.inference_mode(False))
        # A checkpoint around the model counts what is saved for a backward pass, and is not to count this.
        aside = SavedAside()
        stack.callback(aside.clear)
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(aside.pack, aside.unpack))
        # Under autocast a weight that was cast before the pass would come from nowhere, and one cast in it would be
        # used again behind it.
        stack.callback(torch.set_autocast_cache_enabled, torch.is_autocast_cache_enabled())
        torch.set_autocast_cache_enabled(False)
        # Inference tensors take no part in autograd.
        tensors = [*model.parameters(), *model.buffers(), *tensors_in(inputs)]
        stack.enter_context(torch.set_grad_enabled(not any(tensor.is_inference() for tensor in tensors)))
        if "torch._dynamo" in sys.modules:
            # Compiled code hides its operations; without the compiler loaded there is none.
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        for module in modules:
            module.training = False
        yield snapshots


_Attributes = tuple[nn.Module, bool, dict[str, Any], list[tuple[Any, Any]]]


def _contents(module: nn.Module) -> list[tuple[Any, Any]]:
    """The containers among a module's attributes, registered parts too, and what they hold."""
    return [(value, value.copy()) for value in vars(module).values() if isinstance(value, (list, dict, set))]


def _restore_attributes(attributes: list[_Attributes]) -> None:
    for module, training, saved, contents in attributes:
        vars(module).clear()
        vars(module).update(saved)
        # Scripted modules keep the flag elsewhere.
        module.training = training
        for container, before in contents:
            if isinstance(container, list):
                container[:] = before
            else:
                container.clear()
                container.update(before)


@contextmanager
def _random_state(devices: list[int]) -> Iterator[None]:
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def _cuda_devices(model: nn.Module, inputs: Any) -> list[int]:
    tensors = [*model.parameters(), *model.buffers(), *tensors_in(inputs)]
    return sorted({tensor.device.index or 0 for tensor in tensors if tensor.device.type == "cuda"})
