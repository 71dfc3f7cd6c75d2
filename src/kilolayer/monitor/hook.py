"""Hooks that stay behind when their module is copied or pickled."""

from __future__ import annotations

import contextlib
from typing import Any


class Hook:
    """A hook that belongs to one module: a copy of the module gets a stand-in that does nothing.

    Copies would otherwise write into the recording of the original, and pickles would carry the monitor along.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        # Takes any arguments and returns None; from the standard library, so that a pickled model loads anywhere.
        return getattr, (contextlib.nullcontext(), "__exit__")
