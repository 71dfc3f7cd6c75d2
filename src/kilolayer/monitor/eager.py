"""Compiled models run eagerly while hooks hang in them: compiled code would not call the hooks."""

from __future__ import annotations

import sys

import torch
from torch import nn


class EagerRegion:
    """While at least one holder is inside, ``torch.compile`` lets its modules run as they were written.

    Compiled code is kept and used again afterwards, so entering and leaving compiles nothing.
    """

    def __init__(self) -> None:
        self._holders: set[int] = set()
        self._stance: torch.compiler.set_stance | None = None  # type: ignore[valid-type]

    def enter(self, holder: object) -> None:
        """Hold compiled code back; entering twice is entering once."""
        if not self._holders:
            self._stance = torch.compiler.set_stance("force_eager")
        self._holders.add(id(holder))

    def leave(self, holder: object) -> None:
        """Let it run again once the last holder has left."""
        if id(holder) not in self._holders:
            return
        self._holders.remove(id(holder))
        if not self._holders and self._stance is not None:
            self._stance.__exit__(None, None, None)
            self._stance = None


def uses_flex_attention(model: nn.Module) -> bool:
    """Whether attention is compiled on its own, which needs far more memory where it runs eagerly.

    Told by the configuration of Hugging Face's models, and by what the modules' source files import.
    """
    if "torch.nn.attention.flex_attention" not in sys.modules:
        return False
    kinds = {getattr(getattr(module, "config", None), "_attn_implementation", None) for module in model.modules()}
    sources = {type(module).__module__ for module in model.modules()}
    return "flex_attention" in kinds or any(hasattr(sys.modules.get(name), "flex_attention") for name in sources)


EAGER_REGION = EagerRegion()
"""The compiler's stance belongs to the process, so monitors share one region."""
