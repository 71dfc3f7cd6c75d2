"""Which value a tensor holds right now, through views and writes in place.

A tensor is told by its storage and the part of it that it shows, never by the address of a Python object:
addresses are used again, and autograd wraps views in new objects. A weak reference to each storage keeps its
address from being used again, without keeping its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch
from torch.multiprocessing.reductions import StorageWeakRef

Part = tuple[Any, ...]


@dataclass(slots=True)
class _Memory:
    """What is known of one storage: the value seen through each part, and the writes in order."""

    anchor: object
    is_made_here: bool
    seen: dict[Part, tuple[int, int]] = field(default_factory=dict)
    writes: list[tuple[Part, int, int]] = field(default_factory=list)


class ValueTable:
    """Finds the value of a tensor.

    Args:
        new_source: makes the value of a tensor that was never seen, as constants of the model are.
        new_merge: ``new_merge(tensor, old, written)`` makes the value of a tensor part of which was
            overwritten through another view; ``old`` is ``None`` where all of it was, or none of it was seen.
    """

    def __init__(
        self, new_source: Callable[[Tensor], int], new_merge: Callable[[Tensor, int | None, int], int]
    ) -> None:
        self._memories: dict[Hashable, _Memory] = {}
        self._new_source = new_source
        self._new_merge = new_merge

    def find(self, tensor: Tensor) -> int:
        """The value the tensor holds now."""
        # Module hooks under vmap are given wrappers; operations, what is inside.
        while _functorch.is_functorch_wrapped_tensor(tensor):
            tensor = _functorch.get_unwrapped(tensor)
        memory, part = self._memory(tensor), _part(tensor)
        if part in memory.seen:
            value, version = memory.seen[part]
            pending = memory.writes[version:]
        elif memory.seen:
            # An unseen view of a storage that is known: what the whole of it holds.
            value, pending = next(reversed(memory.seen.values()))[0], memory.writes
            value = self._new_merge(tensor, None, value)
        else:
            value, pending = self._new_source(tensor), []
        for written_part, written, size in pending:
            if written_part != part and may_overlap(written_part, part):
                old = None if size >= _storage_entries(tensor) else value
                value = self._new_merge(tensor, old, written)
        memory.seen[part] = (value, len(memory.writes))
        return value

    def is_made_here(self, tensor: Tensor) -> bool:
        """Whether the storage was made during the pass, so that nobody outside can hold it."""
        memory = self._memories.get(_key(tensor))
        return memory is not None and memory.is_made_here

    def put(self, tensor: Tensor, value: int, *, made_here: bool = True) -> None:
        """Say what a tensor holds, where an operation returned it or it was there before.

        A second view of the same part is the first one.
        """
        memory, part = self._memory(tensor, made_here=made_here), _part(tensor)
        if memory.seen.get(part, (0, -1))[1] != len(memory.writes):
            memory.seen[part] = (value, len(memory.writes))

    def write(self, tensor: Tensor, value: int) -> None:
        """Say that the tensor was written to, and what it holds now."""
        memory, part = self._memory(tensor), _part(tensor)
        memory.writes.append((part, value, tensor.numel()))
        memory.seen[part] = (value, len(memory.writes))

    def _memory(self, tensor: Tensor, *, made_here: bool = False) -> _Memory:
        key = _key(tensor)
        memory = self._memories.get(key)
        if memory is None:
            anchor = tensor if key == id(tensor) else StorageWeakRef(tensor.untyped_storage())
            memory = self._memories[key] = _Memory(anchor, made_here)
        return memory


def _key(tensor: Tensor) -> Hashable:
    try:
        return tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):  # sparse and other tensors without a storage of their own
        return id(tensor)


def _part(tensor: Tensor) -> Part:
    if tensor.layout is not torch.strided:
        return (tuple(tensor.shape), tensor.dtype)
    return (tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype)


def may_overlap(first: Part, second: Part) -> bool:
    """Whether two parts of one storage may share an entry; false only where they cannot.

    Slices along one dimension differ in where they lie within the stride of the dimension before it.
    """
    if len(first) != 4 or len(second) != 4 or first[3] != second[3]:
        return True
    parts = [_Strided(*part[:3]) for part in (first, second)]
    if parts[0].offset > parts[1].last or parts[1].offset > parts[0].last:
        return False
    for period in {stride for part in parts for stride in part.strides if stride > 1}:
        spans = [part.span_within(period) for part in parts]
        if spans[0] is not None and spans[1] is not None and not _ranges_meet(spans[0], spans[1]):
            return False
    return True


class _Strided:
    """The entries ``offset + sum_i k_i stride_i``, ``0 <= k_i < shape_i``."""

    def __init__(self, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]):
        self.offset = offset
        self._steps = [(size, stride) for size, stride in zip(shape, strides, strict=True) if size > 1]
        self.strides = [stride for _, stride in self._steps]
        self.last = offset + sum((size - 1) * stride for size, stride in self._steps)

    def span_within(self, period: int) -> tuple[int, int] | None:
        """First and last place modulo a period, where the entries keep within one stretch of it."""
        start = self.offset % period
        length = sum((size - 1) * stride for size, stride in self._steps if stride % period)
        return (start, start + length) if start + length < period else None


def _ranges_meet(first: tuple[int, int], second: tuple[int, int]) -> bool:
    return first[0] <= second[1] and second[0] <= first[1]


def _storage_entries(tensor: Tensor) -> int:
    try:
        return tensor.untyped_storage().nbytes() // tensor.element_size()
    except (NotImplementedError, RuntimeError):
        return tensor.numel()
