"""What every reference layer has: named parameters, gradients under the same names, a training flag."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

Array: TypeAlias = NDArray[np.floating[Any]]
Self = TypeVar("Self", bound="Layer")


class Layer:
    """A function with a hand-written derivative.

    ``forward(x)`` keeps what ``backward(grad_out)`` needs; ``backward`` returns the gradient with respect to
    ``x`` and overwrites (never accumulates) the gradients of the layer's parameters. Neither changes its
    argument. A layer computes in the dtype of its parameters and inputs: float64 until :meth:`astype` or
    :meth:`load_parameters` says otherwise. One layer object stands for one place in the network: used at two
    places, the second forward would overwrite what the first one kept.
    """

    def __init__(self) -> None:
        self.parameters: dict[str, Array] = {}
        self.gradients: dict[str, Array] = {}
        self.buffers: dict[str, Array] = {}
        self.children: dict[str, Layer] = {}
        self.training = True
        self._kept: Any = None

    def forward(self, x: Array) -> Array:
        """The layer's output."""
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def backward(self, grad_out: Array) -> Array:
        """The gradient of the loss with respect to the input of the last forward."""
        raise NotImplementedError(f"{type(self).__name__} has no backward")

    # ------------------------------------------------------------------ names
    def named_layers(self, prefix: str = "") -> Iterator[tuple[str, Layer]]:
        """This layer (under the name ``prefix``) and all below it, parents first."""
        yield prefix, self
        for name, child in self.children.items():
            yield from child.named_layers(f"{prefix}.{name}" if prefix else name)

    def named_parameters(self) -> Iterator[tuple[str, Array]]:
        """Qualified names and arrays of all parameters, named as the PyTorch twin names them."""
        yield from self._named("parameters")

    def named_gradients(self) -> Iterator[tuple[str, Array]]:
        """Qualified names and gradients of all parameters; nothing before the first backward."""
        yield from self._named("gradients")

    def named_buffers(self) -> Iterator[tuple[str, Array]]:
        """Qualified names and arrays that are state but not trained: running statistics."""
        yield from self._named("buffers")

    def _named(self, kind: str) -> Iterator[tuple[str, Array]]:
        for path, layer in self.named_layers():
            for name, array in getattr(layer, kind).items():
                yield (f"{path}.{name}" if path else name), array

    # ------------------------------------------------------------------ state
    def train(self: Self, mode: bool = True) -> Self:
        """Switch this layer and all below it to training (or, with ``False``, evaluation)."""
        for _, layer in self.named_layers():
            layer.training = mode
        return self

    def eval(self: Self) -> Self:
        """Switch this layer and all below it to evaluation."""
        return self.train(False)

    def astype(self: Self, dtype: DTypeLike) -> Self:
        """Replace all parameters and buffers by copies of a floating dtype; gradients are dropped."""
        if not np.issubdtype(dtype, np.floating):
            raise TypeError(f"parameters must be floating point, got {np.dtype(dtype)}; use float32 or float64")
        for _, layer in self.named_layers():
            layer.gradients = {}
            for arrays in (layer.parameters, layer.buffers):
                for name, array in arrays.items():
                    arrays[name] = array.astype(dtype)
        return self

    def load_parameters(self, values: Mapping[str, Array]) -> None:
        """Copy parameters in by name; the layer takes on their dtype.

        Args:
            values: an array for every parameter; buffers (running statistics) may be there as well.

        Raises:
            ValueError: a name is missing or unknown, or a shape differs; the names are listed.
            TypeError: an array is not floating point.
        """
        parameters, buffers = dict(self.named_parameters()), dict(self.named_buffers())
        known = {**parameters, **buffers}
        if missing := [name for name in parameters if name not in values]:
            raise ValueError(f"no value for {_listed(missing)}; every parameter needs one")
        if unknown := [name for name in values if name not in known]:
            raise ValueError(f"unknown names {_listed(unknown)}; known: {_listed(list(known))}")
        for name, value in values.items():
            if np.shape(value) != known[name].shape:
                raise ValueError(f"{name} has shape {known[name].shape}, got shape {np.shape(value)}")
        self.astype(np.result_type(*values.values()) if values else np.float64)
        for name, array in (*self.named_parameters(), *self.named_buffers()):
            if name in values:
                array[...] = values[name]

    def _recall(self) -> Any:
        """What the last forward kept."""
        if self._kept is None:
            raise RuntimeError(f"{type(self).__name__}.backward needs a forward first")
        return self._kept


def check_features(layer: Layer, x: Array, num_features: int) -> None:
    """Refuse anything but a ``(batch, num_features)`` array."""
    if x.ndim != 2 or x.shape[1] != num_features:
        raise ValueError(f"{type(layer).__name__} takes arrays of shape (batch, {num_features}), got shape {x.shape}")


def check_count(name: str, value: int) -> int:
    """Refuse a size that is not an int of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be >= 1, got {value}")
    return value


def _listed(names: list[str], limit: int = 4) -> str:
    """The first few names, and how many more there are."""
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(repr(name) for name in names[:limit]) + rest
