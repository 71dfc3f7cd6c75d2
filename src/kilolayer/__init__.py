"""kilolayer trains networks a thousand layers deep, and tells you why yours will not train."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kilolayer.recording import Recording

__version__ = "0.1.0"

# Resolved on first use, so that importing kilolayer costs no torch.
_HOME = {
    "Recording": "kilolayer.recording",
}

__all__ = ["Recording", "__version__"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'kilolayer' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
