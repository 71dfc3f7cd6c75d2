"""What a training script does between two optimizer steps, kept so that its losses can be computed again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from kilolayer.structure.schemas import tensors_in


@dataclass(frozen=True)
class Entry:
    """One function, or one module with parameters, called by the script itself: not from inside of such a module."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    writes_first: bool = False

    @property
    def is_call(self) -> bool:
        """Whether a module is called."""
        return isinstance(self.func, nn.Module)

    def given(self) -> list[Tensor]:
        """The tensors it was called with."""
        return tensors_in([self.args, self.kwargs])

    def made(self) -> list[Tensor]:
        """The tensors that are another thing behind it."""
        return tensors_in(self.result) + (tensors_in(self.args[:1]) if self.writes_first else [])


class Tape(TorchFunctionMode):
    """Keeps what the script computes from trained tensors, and the losses it goes back from.

    Modules tell it when they are entered and left; what runs inside of one belongs to its call.
    """

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[Entry] = []
        self.losses: list[Tensor] = []
        self._live: set[int] = set()
        self._depth = 0
        self._is_backward = False

    def take(self) -> tuple[list[Entry], list[Tensor]]:
        """What was kept since the last time, as far as the losses depend on it, and the losses."""
        entries, losses = self.entries, self.losses
        self.entries, self.losses, self._live = [], [], set()
        return part_behind(losses, entries), losses

    def enter(self, module: nn.Module) -> None:
        """A module with parameters begins."""
        self._depth += 1

    def leave(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """It ends."""
        self._depth -= 1
        if self._depth == 0 and not self._is_backward:
            self._keep(Entry(module, args, kwargs, output))

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._depth or self._is_backward:
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name == "backward":
            self.losses += tensors_in(args[:1])
            self._is_backward = True
            try:
                return func(*args, **kwargs)
            finally:
                self._is_backward = False
        result = func(*args, **kwargs)
        self._keep(Entry(func, args, kwargs, result, writes_first=_writes(name)))
        return result

    def _keep(self, entry: Entry) -> None:
        if not torch.is_grad_enabled():  # a constant
            return
        trained = any(one.requires_grad or id(one) in self._live for one in entry.given())
        if entry.is_call:
            trained = trained or any(one.requires_grad for one in entry.func.parameters())
        made = entry.made()
        is_initialization = any(one.is_leaf and one.requires_grad for one in made)
        if trained and made and not is_initialization:
            self.entries.append(entry)
            self._live.update(map(id, made))


def _writes(name: str) -> bool:
    is_in_place = name.endswith("_") and not name.endswith("__")
    return is_in_place or name == "__setitem__" or (name.startswith("__i") and name not in ("__invert__", "__index__"))


def part_behind(wanted: Iterable[Tensor], entries: Sequence[Entry]) -> list[Entry]:
    """The entries that tensors were computed by, in order."""
    needed, found = set(map(id, wanted)), []
    for entry in reversed(entries):
        if any(id(one) in needed for one in entry.made()):
            found.append(entry)
            needed.update(map(id, entry.given()))
    return found[::-1]


def constants_of(entries: Sequence[Entry]) -> list[Tensor]:
    """The tensors that entries were given and none of them made, each once."""
    made: set[int] = set()
    found: dict[int, Tensor] = {}
    for entry in entries:
        for one in entry.given():
            if id(one) not in made:
                found.setdefault(id(one), one)
        made.update(map(id, entry.made()))
    return list(found.values())


def replay(entries: Sequence[Entry], known: dict[int, Tensor]) -> dict[int, Tensor]:
    """Run entries once more with other tensors in the place of those whose ``id`` is known; all that are known then."""
    known = dict(known)
    for entry in entries:
        args, kwargs = swapped(entry.args, known), swapped(entry.kwargs, known)
        result = entry.func(*args, **kwargs)
        known.update(zip(map(id, tensors_in(entry.result)), tensors_in(result), strict=False))
        if entry.writes_first:
            known.update(zip(map(id, tensors_in(entry.args[:1])), tensors_in(args[:1]), strict=True))
    return known


def swapped(tree: Any, known: dict[int, Tensor]) -> Any:
    """Nested lists, tuples and dictionaries with other tensors in the place of those whose ``id`` is known."""
    if isinstance(tree, Tensor):
        return known.get(id(tree), tree)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(swapped(one, known) for one in tree))
    if type(tree) in (list, tuple):
        return type(tree)(swapped(one, known) for one in tree)
    if type(tree) is dict:
        return {key: swapped(one, known) for key, one in tree.items()}
    return tree


@dataclass
class Iteration:
    """One step's losses as entries, with tensors of its own for what the script made without training it.

    Attributes:
        entries: in order.
        losses: the tensors that the script went back from.
        constants: ``id`` of what the script handed over -> a copy, of all but trained tensors.
    """

    entries: list[Entry]
    losses: list[Tensor]
    constants: dict[int, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for one in constants_of(self.entries):
            if not one.requires_grad:
                self.constants[id(one)] = one.detach().clone()

    @property
    def calls(self) -> list[Entry]:
        """The modules that are called."""
        return [entry for entry in self.entries if entry.is_call]

    def loss(self, constants: dict[int, Tensor]) -> Any:
        """The sum of the losses, computed anew."""
        known = replay(self.entries, constants)
        return sum(known.get(id(one), one) for one in self.losses)

    @property
    def num_bytes(self) -> int:
        """What the copies take."""
        return sum(one.numel() * one.element_size() for one in self.constants.values())
