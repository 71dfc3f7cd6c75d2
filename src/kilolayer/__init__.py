"""kilolayer trains networks a thousand layers deep, and tells you why yours will not train."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kilolayer.check import Setup, check
    from kilolayer.convert import apply_conversion, audit, plan_conversion, redepth
    from kilolayer.diagnosis import diagnose
    from kilolayer.monitor import Monitor
    from kilolayer.recording import Recording
    from kilolayer.schemes.coefficients import coefficients
    from kilolayer.structure import Structure, read_structure

__version__ = "0.1.0"

# Resolved on first use, so that importing kilolayer costs no torch.
_HOMES = {
    "Monitor": "kilolayer.monitor",
    "Recording": "kilolayer.recording",
    "Setup": "kilolayer.check",
    "Structure": "kilolayer.structure",
    "apply_conversion": "kilolayer.convert",
    "audit": "kilolayer.convert",
    "coefficients": "kilolayer.schemes.coefficients",
    "diagnose": "kilolayer.diagnosis",
    "plan_conversion": "kilolayer.convert",
    "read_structure": "kilolayer.structure",
    "redepth": "kilolayer.convert",
}
_ROOMS = (
    "check",
    "convert",
    "diagnosis",
    "init",
    "integrations",
    "monitor",
    "nn",
    "recording",
    "reference",
    "remedies",
    "report",
    "schemes",
    "structure",
    "testing",
    "theory",
    "train",
)

__all__ = [
    "Monitor",
    "Recording",
    "Setup",
    "Structure",
    "__version__",
    "apply_conversion",
    "audit",
    "check",
    "coefficients",
    "diagnose",
    "plan_conversion",
    "read_structure",
    "redepth",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in _ROOMS:
        return importlib.import_module(f"kilolayer.{name}")
    raise AttributeError(f"module 'kilolayer' has no attribute {name!r}; it has {', '.join(__dir__())}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_ROOMS})
