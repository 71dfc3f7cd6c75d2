"""What was attached to a module, so that calling it does more than its class says."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

CALL_CHANGES = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_compiled_call_impl",
    "forward",
)
"""Attributes of a module that change what calling it does."""


def is_hooked(module: nn.Module) -> bool:
    """Whether a hook, a compiled call or a forward of the module's own stands between its call and its class."""
    return any(module.__dict__.get(name) for name in CALL_CHANGES)


def is_overridden(module: nn.Module, class_name: str, methods: Sequence[str]) -> bool:
    """Whether a subclass or the instance itself has methods in place of those of the class of this name."""
    kind = type(module)
    return any(
        name in module.__dict__ or getattr(kind, name).__qualname__ != f"{class_name}.{name}" for name in methods
    )
