"""Another wiring for residual branches whose sum is written in somebody else's ``forward``.

The code says ``x + g``, where g is what the branch's last module returns. Returning ``g = y - x`` makes the sum y,
whatever y is: so norms move, skips get factors, and the code around stays. The module that takes x in remembers it,
the one that returns g forgets it. ``y - x + x`` is y up to the rounding of one addition.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, cast

from torch import Tensor, nn

from kilolayer.convert.mixed_class import mixed_class, pickled
from kilolayer.schemes import BranchScales, Stack

MARK = (1, 1, 1, 1)
"""Dimensions in front of those of a marked parameter: no kernel has as many."""

Learned = tuple[nn.Module, str]
"""The owner of a trained scale and its name there; the parameter itself may be replaced when a model is loaded."""


class Wiring:
    """One branch under a scheme: what its entry, its exit and the norm behind its sum do.

    Attributes:
        scales: what the scheme gives the branch.
        stack: the stack it belongs to.
        source: whether the code around has its norm in front of the branch or behind the sum.
        norms: filled slot -> the norm; ``"final"`` is one that ends the stack.
        learned, learned_skip: a trained branch scale, and a trained skip scale.
        branch_index: of the branch in its stack.
        layer_start: the wiring of the layer's first branch, where the sum also takes what went into the layer.
        branch_variance: of the branch's output in the last run that a verification saw.
        seen: stream in and out of every run while a verification wants them, else ``None``.
    """

    def __init__(
        self,
        scales: BranchScales,
        stack: Stack,
        norms: dict[str, nn.Module],
        learned: Learned | None = None,
    ):
        self.scales = scales
        self.stack = stack
        self.source: Literal["pre", "post"] = "pre"
        self.norms = norms
        self.learned = learned
        self.learned_skip: Learned | None = None
        self.branch_index = 0
        self.layer_start: Wiring | None = None
        self.keeps_layer_input = False
        self.branch_variance = 0.0
        self.seen: list[tuple[Tensor, Tensor | None]] | None = None
        self._x: Tensor | None = None
        self._layer_x: Tensor | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_x": None, "_layer_x": None, "seen": None}

    @property
    def is_open(self) -> bool:
        """Whether an input went in whose output has not come out."""
        return self._x is not None

    def enter(self, x: Tensor) -> Tensor:
        """What the branch reads instead of ``x``."""
        self._x = x
        self._layer_x = x if self.keeps_layer_input else None
        h = self._norm("pre", x)
        return h if self.scales.norm_output_scale == 1.0 else h * self.scales.norm_output_scale

    def leave(self, branch_out: Tensor) -> Tensor:
        """What the branch returns instead of ``branch_out``, to be added to x."""
        x, self._x = self._x, None
        if x is None:
            raise RuntimeError(
                "a rewired branch returned before anything went in; was one of its modules called alone?"
            )
        branch_out = self._norm("end", branch_out)
        scale = self.scales.branch_scale if self.learned is None else getattr(*self.learned)
        if isinstance(scale, Tensor) or scale != 1.0:
            branch_out = branch_out * scale
        if self.seen is not None:
            self.branch_variance = float(branch_out.detach().float().var())
        branch_out = self._with_layer_input(branch_out)
        has_post, skip_scale = "post" in self.norms, self._skip_scale()
        if has_post and self.source == "post" and isinstance(skip_scale, float):
            out = branch_out if skip_scale == 1.0 else branch_out / skip_scale
        elif not has_post and skip_scale == 1.0:
            out = branch_out
        else:
            total = branch_out if skip_scale is None else branch_out + x * skip_scale
            out = (total if self.source == "post" else self._norm("post", total)) - x
        if self.seen is not None:
            self.seen.append((x.detach(), self._expected(x, branch_out).detach()))
        return out

    def _skip_scale(self) -> float | Tensor | None:
        if not self.scales.has_skip:
            return None
        return self.scales.skip_scale if self.learned_skip is None else getattr(*self.learned_skip)

    def _with_layer_input(self, branch_out: Tensor) -> Tensor:
        if self.layer_start is None:
            return branch_out
        x, self.layer_start._layer_x = self.layer_start._layer_x, None
        if x is None:
            raise RuntimeError("a rewired layer returned before anything went in; was one of its modules called alone?")
        return branch_out + self.scales.layer_skip_scale * x

    def close(self, total: Tensor) -> Tensor:
        """What the norm behind the sum returns."""
        return self._norm("final", self._norm("post", total))

    def _expected(self, x: Tensor, branch_out: Tensor) -> Tensor:
        """The stream behind the branch by the scheme's formula, in one piece."""
        skip_scale = self._skip_scale()
        total = branch_out if skip_scale is None else skip_scale * x + branch_out
        if self.source == "post" and "post" in self.norms and isinstance(skip_scale, float):
            total = total / skip_scale  # where the norm stands in the code, its eps is meant for this
        out = self._norm("post", total)
        return self._norm("final", out) if self.source == "post" else out

    def _norm(self, slot: str, x: Tensor) -> Tensor:
        norm = self.norms.get(slot)
        return x if norm is None else plain_forward(norm, x)


class Rewired(nn.Module):
    """Mixed into the class of a module that stands at the entry, the exit or behind the sum of rewired branches.

    Attributes:
        entered, left, closed: the wirings that the module is the entry of, the exit of, or stands behind.
        inner_norm: a norm in front of the module, where it is the branch's last matrix.
        marked: parameters that are saved with :data:`MARK` in front of their shape, so that a class that knows no
            scheme refuses them.
        saves_marks: false while a library that sets parameters itself loads the model.
    """

    plain_class: type[nn.Module]
    entered: list[Wiring]
    left: list[Wiring]
    closed: list[Wiring]
    marked: list[str]
    saves_marks: bool
    replaces_forward: bool

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        stream = next(_tensors(args, kwargs))
        out: Any
        if self.closed:
            return self.closed[0].close(stream)
        new = self.entered[0].enter(stream) if self.entered else stream
        inner = self._modules.get("kilolayer_inner_norm")
        new = new if inner is None else inner(new)
        if self.replaces_forward:
            return new
        if new is not stream:
            args = tuple(new if one is stream else one for one in args)
            kwargs = {name: new if one is stream else one for name, one in kwargs.items()}
        out = super().forward(*args, **kwargs)
        if not self.left:
            return out
        wiring = next((one for one in reversed(self.left) if one.is_open), self.left[0])
        if isinstance(out, tuple):
            return type(out)((wiring.leave(out[0]), *out[1:]))
        return wiring.leave(out)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name in self.marked if self.saves_marks else ():
            value = destination[f"{prefix}{name}"]
            destination[f"{prefix}{name}"] = value.reshape(*MARK, *value.shape)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for name in self.marked:
            value = state_dict.get(f"{prefix}{name}")
            if isinstance(value, Tensor):
                state_dict[f"{prefix}{name}"] = without_mark(value)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def __reduce__(self) -> tuple[Any, ...]:
        return pickled(self, Rewired)


def without_mark(value: Tensor) -> Tensor:
    """A saved value in the shape its parameter has."""
    return value.reshape(unmarked_shape(tuple(value.shape)))


def unmarked_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a parameter that is saved in this one."""
    return shape[len(MARK) :] if len(shape) > len(MARK) + 1 and shape[: len(MARK)] == MARK else shape


def _tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    return (one for one in (*args, *kwargs.values()) if isinstance(one, Tensor) and one.is_floating_point())


def plain_forward(norm: nn.Module, x: Tensor) -> Tensor:
    """The norm's own forward, past what a rewiring made of it."""
    return norm.plain_class.forward(norm, x) if isinstance(norm, Rewired) else norm(x)


class Tap(nn.Module):
    """Passes on what it is given: stands where a norm stood."""

    def forward(self, x: Tensor) -> Tensor:
        return x


def as_rewired(module: nn.Module) -> Rewired:
    """Make a module an instance of a rewired subclass of its class, in place."""
    if not isinstance(module, Rewired):
        kind: Any = mixed_class(Rewired, type(module))
        module.__class__ = kind
        rewired = cast("Rewired", module)
        rewired.entered, rewired.left, rewired.closed, rewired.marked = [], [], [], []
        rewired.replaces_forward, rewired.saves_marks = False, True
    return cast("Rewired", module)


def wirings_of(model: nn.Module) -> list[Wiring]:
    """Every wiring of a model, each once, in the order of its modules."""
    found: dict[int, Wiring] = {}
    for module in model.modules():
        if isinstance(module, Rewired):
            found.update({id(one): one for one in (*module.entered, *module.left, *module.closed)})
    return list(found.values())
