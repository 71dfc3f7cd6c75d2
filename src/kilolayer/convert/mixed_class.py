"""Subclasses of a module's own class, made where a conversion needs one, so that the module stays what it was."""

from __future__ import annotations

from typing import Any, cast

from torch import nn

_CLASSES: dict[tuple[type[nn.Module], type[nn.Module]], type[nn.Module]] = {}


def mixed_class(mixin: type[nn.Module], plain: type[nn.Module]) -> type[nn.Module]:
    """The subclass of ``plain`` with ``mixin`` in front; the same one each time."""
    if (mixin, plain) not in _CLASSES:
        parts = {"plain_class": plain, "__module__": mixin.__module__, "__doc__": plain.__doc__}
        made = type(f"{mixin.__name__}{plain.__name__}", (mixin, plain), parts)
        _CLASSES[mixin, plain] = cast("type[nn.Module]", made)
    return _CLASSES[mixin, plain]


def pickled(module: Any, mixin: type[nn.Module]) -> tuple[Any, ...]:
    """What ``__reduce__`` returns: a class made here has no name that pickle could look up."""
    return _rebuild, (mixin, module.plain_class), module.__dict__


def _rebuild(mixin: type[nn.Module], plain: type[nn.Module]) -> nn.Module:
    kind = mixed_class(mixin, plain)
    return kind.__new__(kind)
