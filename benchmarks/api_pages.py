"""Writes docs/api: one page a room, every public name in it.

python benchmarks/api_pages.py
"""

from __future__ import annotations

import importlib
from pathlib import Path

API = Path(__file__).resolve().parent.parent / "docs" / "api"

ROOMS = {
    "check": "Why a set-up does not train. [The guide](../check.md).",
    "remedies": "Edits of a set-up, and the trials that prove them. [The guide](../remedies.md).",
    "monitor": "What a model does while it trains. [The guide](../monitor.md).",
    "integrations.transformers": "The monitor in the Trainer of Hugging Face transformers.",
    "integrations.lightning": "The monitor in the Trainer of Lightning.",
    "integrations.loggers": "The monitor's numbers in TensorBoard, Weights & Biases, MLflow and Trackio.",
    "structure": "What a model is: its residual sums, norms and scales. [The guide](../structure.md).",
    "recording": "What was measured: rows, site table and facts, as Parquet. No torch.",
    "diagnosis": "Rules that read a recording and name one cause. No torch. [The causes](../causes.md).",
    "report": "Recordings and findings as page, text, picture and JSON. No torch. [The guide](../report.md).",
    "schemes": "What depth does to scale, a pure function of depth and place. No torch. [The cards](../schemes.md).",
    "nn": "Layers that take `torch.nn`'s arguments and a scheme, and models made of them.",
    "init": "Initialization as a plan that can be printed before it is applied.",
    "convert": "Another scheme or depth, outputs kept; is a model what it claims? [The guide](../convert.md).",
    "train": "A training engine for depth. [The guide](../train.md).",
    "theory": "What mathematics expects of a network at initialization. No torch. [The guide](../theory.md).",
    "testing": "For test suites.",
}
PUBLIC = {
    "integrations.transformers": ["MonitorCallback"],
    "integrations.lightning": ["MonitorCallback"],
    "testing": ["assert_trainable"],
}
"""Of modules that list no names themselves."""


def names_of(room: str) -> list[str]:
    """The public names of a room, classes and functions before constants."""
    module = importlib.import_module(f"kilolayer.{room}")
    names = PUBLIC.get(room) or getattr(module, "__all__", None)
    if names is None:
        names = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    return sorted((name for name in names if not name.startswith("_")), key=lambda name: (name.isupper(), name.lower()))


def page(room: str) -> str:
    """A room's page."""
    parts = [f"# kilolayer.{room}", ROOMS[room], *(f"::: kilolayer.{room}.{name}" for name in names_of(room))]
    return "\n\n".join(parts) + "\n"


def path_of(room: str) -> Path:
    """Where a room's page is."""
    return API / f"{room.replace('.', '-')}.md"


if __name__ == "__main__":
    for name in ROOMS:
        path_of(name).write_text(page(name), encoding="utf-8")
