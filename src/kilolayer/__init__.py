"""kilolayer trains networks a thousand layers deep, and tells you why yours will not train."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kilolayer.monitor import Monitor
    from kilolayer.recording import Recording
    from kilolayer.schemes.coefficients import coefficients
    from kilolayer.structure import Structure, read_structure

__version__ = "0.1.0"

# Resolved on first use, so that importing kilolayer costs no torch.
_HOME = {
    "Monitor": "kilolayer.monitor",
    "Recording": "kilolayer.recording",
    "Structure": "kilolayer.structure",
    "coefficients": "kilolayer.schemes.coefficients",
    "read_structure": "kilolayer.structure",
}

__all__ = ["Monitor", "Recording", "Structure", "__version__", "coefficients", "read_structure"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'kilolayer' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
