"""Activations of the feed-forward branch by name, gated ones included."""

from __future__ import annotations

import difflib
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Activation = Callable[[Tensor], Tensor]


def swiglu(h: Tensor) -> Tensor:
    """``up * silu(gate)`` for ``h = [up, gate]`` along the last dimension.

    Shape: ``(*, 2 hidden) -> (*, hidden)``.

    Reference: Shazeer 2020, arXiv:2002.05202, eq. 6.
    """
    up, gate = h.chunk(2, dim=-1)
    return up * F.silu(gate)


ACTIVATIONS: dict[str, Activation] = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu, "swiglu": swiglu}
GATED = ("swiglu",)

ELEMENTWISE: dict[str, Activation] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "identity": lambda x: x,
}
"""Activations of deep MLPs, which theory knows too; the saturating ones are there to be diagnosed."""


def get_elementwise(name: str) -> Activation:
    """The function of this name from :data:`ELEMENTWISE`.

    Raises:
        ValueError: an unknown name; the nearest one is suggested.

    Examples:
        >>> get_elementwise("tanh")(torch.zeros(1))
        tensor([0.])
    """
    if name not in ELEMENTWISE:
        nearest = difflib.get_close_matches(name, ELEMENTWISE, n=1)
        hint = f"did you mean {nearest[0]!r}?" if nearest else f"known: {', '.join(ELEMENTWISE)}"
        raise ValueError(f"unknown activation {name!r}; {hint}")
    return ELEMENTWISE[name]


def resolve_activation(activation: str | Activation) -> tuple[str | None, Activation]:
    """The name of an activation, ``None`` if it is none of :data:`ACTIVATIONS`, and the function.

    Raises:
        ValueError: an unknown name; the nearest one is suggested.
        TypeError: neither a name nor a callable.

    Examples:
        >>> resolve_activation(nn.GELU())[0]
        'gelu'
    """
    if isinstance(activation, str):
        if activation not in ACTIVATIONS:
            nearest = difflib.get_close_matches(activation, ACTIVATIONS, n=1)
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"known: {', '.join(ACTIVATIONS)}, or a callable"
            raise ValueError(f"unknown activation {activation!r}; {hint}")
        return activation, ACTIVATIONS[activation]
    if not callable(activation):
        raise TypeError(f"activation must be a name or a callable, got {activation!r}")
    return activation_name(activation), activation


def activation_name(activation: Activation) -> str | None:
    """The name of a function or module among :data:`ACTIVATIONS`, if it has one."""
    # A subclass may compute something else.
    if type(activation) is nn.ReLU:
        return "relu"
    if type(activation) is nn.GELU:
        # The tanh approximation is another function, which has no name here.
        return "gelu" if activation.approximate == "none" else None
    if type(activation) is nn.SiLU:
        return "silu"
    return next((name for name, function in ACTIVATIONS.items() if function is activation), None)
