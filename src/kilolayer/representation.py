"""How the library's objects show themselves in a notebook and in a console."""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

MOST_ITEMS = 3
"""A longer collection is told by its size."""


def repr_html(self: object) -> str:
    """The object as a small piece of HTML; a class takes it as ``_repr_html_ = repr_html``."""
    # By name: the rooms that define the objects come before the report on the street, and must not import it.
    return str(importlib.import_module("kilolayer.report.notebook").show_html(self))


def repr_short(self: Any) -> str:
    """A dataclass as one line, however deep the model; a class takes it as ``__repr__ = repr_short``.

    Examples:
        >>> @dataclasses.dataclass
        ... class Plan:
        ...     name: str
        ...     rows: tuple[int, ...]
        ...     __repr__ = repr_short
        >>> Plan("a", tuple(range(1000)))
        Plan(name='a', rows=<1000>)
    """
    shown = ((field.name, getattr(self, field.name)) for field in dataclasses.fields(self) if field.repr)
    return f"{type(self).__qualname__}({', '.join(f'{name}={_short(value)}' for name, value in shown)})"


def _short(value: Any) -> str:
    if dataclasses.is_dataclass(value):
        return f"{type(value).__qualname__}(...)"
    if isinstance(value, (tuple, list, dict)) and len(value) > MOST_ITEMS:
        return f"<{len(value)}>"
    if isinstance(value, tuple):
        return f"({', '.join(map(_short, value))}{',' * (len(value) == 1)})"
    return repr(value)
