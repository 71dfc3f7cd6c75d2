"""The residual sums of somebody's ``forward``, written as ``x + branch(x)``, done in another way."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kilolayer.remedies.operations import Call, Frame, edit_operations, rehearse
from kilolayer.remedies.remedy import AnySetup, SetupLike, Unsuitable

ADDITIONS = frozenset({"add", "__radd__", "add_", "__iadd__"})
FACTORS = frozenset({"mul", "__rmul__"})


@dataclass(frozen=True)
class Sum:
    """A residual sum that is about to be done: ``skip_scale * skip + branch_scale * branch``.

    ``index`` counts the sums of one pass from 0; ``path`` is the module whose code does it.
    """

    index: int
    path: str
    skip: Tensor
    branch: Tensor
    skip_scale: float
    branch_scale: float
    is_doubled: bool

    @property
    def result(self) -> Tensor:
        """What the code computes."""
        skip = self.skip if self.skip_scale == 1.0 else self.skip * self.skip_scale
        branch = self.branch if self.branch_scale == 1.0 else self.branch * self.branch_scale
        return skip + branch


class Watch:
    """Tells residual sums from other additions: one side was computed from the other, or both are the same.

    Args:
        paths: modules whose own code does residual sums.
        do: what is returned in the place of each.
    """

    def __init__(self, paths: Collection[str], do: Callable[[Sum], Tensor]):
        self._paths = frozenset(paths)
        self._do = do
        self._factors: dict[int, tuple[Tensor, Tensor, float]] = {}
        self._stream: dict[str, Tensor] = {}
        self.count = 0

    def start(self) -> None:
        """A pass begins."""
        self._factors.clear()
        self._stream.clear()
        self.count = 0

    def __call__(self, call: Call) -> Any:
        if call.path not in self._paths:
            return call.run()
        if call.name in FACTORS and (found := _factor(call)) is not None:
            result = call.run()
            self._factors[id(result)] = (result, *found)
            return result
        if call.name in ADDITIONS and (one := self._read(call)) is not None:
            self.count += 1
            result = self._do(one)
            self._stream[call.path] = result
            return result
        return call.run()

    def _read(self, call: Call) -> Sum | None:
        sides = call.args[:2]
        if len(sides) < 2 or not all(isinstance(side, Tensor) for side in sides) or sides[0].shape != sides[1].shape:
            return None
        if not sides[0].is_floating_point() or call.kwargs.get("alpha", 1) != 1:
            return None
        (one, one_scale), (other, other_scale) = (self._base(side) for side in sides)
        if one is other:
            stream = self._stream.get(call.path, call.frame.given)
            if stream is None or stream.shape != one.shape:
                return None
            return Sum(self.count, call.path, stream, one, 1.0, one_scale, True)
        if _is_behind(other, one, call.frame):
            return Sum(self.count, call.path, one, other, one_scale, other_scale, False)
        if _is_behind(one, other, call.frame):
            return Sum(self.count, call.path, other, one, other_scale, one_scale, False)
        return None

    def _base(self, side: Tensor) -> tuple[Tensor, float]:
        """A side without the constant that it was multiplied with."""
        found = self._factors.get(id(side))
        return (side, 1.0) if found is None else (found[1], found[2])


def _factor(call: Call) -> tuple[Tensor, float] | None:
    """Tensor and constant of a product of the two."""
    sides = call.args[:2]
    if len(sides) < 2:
        return None
    for tensor, factor in (sides, sides[::-1]):
        if isinstance(tensor, Tensor) and isinstance(factor, (int, float)):
            return tensor, float(factor)
        if isinstance(factor, Tensor) and factor.numel() == 1 and not factor.requires_grad and tensor is not factor:
            return (tensor, float(factor)) if isinstance(tensor, Tensor) and tensor.dim() else None
    return None


def _is_behind(branch: Tensor, skip: Tensor, frame: Frame) -> bool:
    """Whether a tensor was computed from another."""
    target, node = skip.grad_fn, branch.grad_fn
    if node is None:
        return False
    if target is None:
        # Data, or a parameter: nothing but the module's own input is a stream.
        return skip is frame.given
    first = target._sequence_nr()
    seen, open_nodes = {node}, [node]
    while open_nodes:
        current = open_nodes.pop()
        if current is target:
            return True
        for following, _ in current.next_functions:
            if following is not None and following not in seen and following._sequence_nr() >= first:
                seen.add(following)
                open_nodes.append(following)
    return False


def edit_sums(setup: AnySetup, paths: Collection[str], do: Callable[[Sum], Tensor]) -> AnySetup:
    """The set-up with other residual sums.

    Args:
        setup: nobody else's.
        paths: modules whose own code does residual sums, as the structure says.
        do: what is returned in the place of each sum.
    """
    watch = Watch(paths, do)
    return edit_operations(setup, watch, on_start=watch.start)


@dataclass(frozen=True)
class SumPlace:
    """A sum that a rehearsal saw."""

    path: str
    shape: tuple[int, ...]
    is_doubled: bool


def see_sums(setup: SetupLike, paths: Collection[str]) -> list[SumPlace]:
    """The residual sums of one pass, in order.

    Raises:
        Unsuitable: there are none that an edit could reach.
    """
    seen: list[SumPlace] = []

    def note(one: Sum) -> Tensor:
        seen.append(SumPlace(one.path, tuple(one.branch.shape), one.is_doubled))
        return one.result if not one.is_doubled else one.branch * (2 * one.branch_scale)

    watch = Watch(paths, note)
    rehearse(setup, watch)
    if not seen:
        raise Unsuitable("the model's sums are not written as tensor + tensor in the code of its modules")
    return seen


def new_norm(shape: tuple[int, ...], like: Tensor, *, is_image: bool) -> nn.Module:
    """A norm of a stream: over the last dimension, or over channels and places behind convolutions."""
    options = {"device": like.device, "dtype": like.dtype}
    if is_image and len(shape) > 2:
        return nn.GroupNorm(1, shape[1], **options)  # type: ignore[arg-type]
    return nn.LayerNorm(shape[-1], **options)  # type: ignore[arg-type]


def scalar(value: float, like: Tensor) -> nn.Parameter:
    """A trained number."""
    return nn.Parameter(torch.full((1,), value, device=like.device, dtype=like.dtype))
