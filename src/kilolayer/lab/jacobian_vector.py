"""Jacobian-vector products of modules."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn


def push_forward(module: nn.Module, x: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """``module(x)`` and the Jacobian there times ``vectors``.

    Shape: vectors as x.

    Examples:
        >>> out, pushed = push_forward(nn.ReLU(), torch.tensor([1.0, -1.0]), torch.tensor([3.0, 4.0]))
        >>> pushed.tolist()
        [3.0, 0.0]
    """
    with warnings.catch_warnings():
        # The first forward-mode derivative makes torch 2.13 load a file of its own that it warns about.
        warnings.filterwarnings("ignore", message="`torch.jit.script", category=DeprecationWarning)
        pushed = torch.func.jvp(module, (x,), (vectors,))
    return pushed[0], pushed[1]
