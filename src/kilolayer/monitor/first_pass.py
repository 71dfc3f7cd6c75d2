"""The first training pass of a model, from which its structure is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from kilolayer.monitor.hook import Hook
from kilolayer.monitor.passes import is_in_backward
from kilolayer.structure.recorder import is_recording

Inputs = tuple[tuple[Any, ...], dict[str, Any]]


class FirstPass(Hook):
    """Hook on the model that hands over the inputs of its first call with gradients, once and before any other hook.

    Args:
        model: the module whose call is a forward pass.
        use: called with the positional and the keyword inputs, the hook being gone.
    """

    def __init__(self, model: nn.Module, use: Callable[[Inputs], None]):
        self._model = model
        self._use = use
        self._handle: RemovableHandle | None = None

    def attach(self) -> None:
        """Hang the hook up, if it is not."""
        if self._handle is None:
            self._handle = self._model.register_forward_pre_hook(self, prepend=True, with_kwargs=True)

    def detach(self) -> None:
        """Take it down, if it is up."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # A copy of the model may share its hooks; evaluations and repetitions by a checkpoint are no training pass.
        if module is not self._model or torch.compiler.is_compiling():
            return
        if torch.is_grad_enabled() and not is_in_backward() and not is_recording():
            self.detach()
            self._use((args, kwargs))
