"""transformers, where it is installed: saved models are its own, and only they need it."""

from __future__ import annotations

import importlib
from typing import Any


def import_transformers() -> Any:
    """The library.

    Raises:
        ImportError: it is not installed; the extra is named.
    """
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        raise ImportError(
            "saved models are Hugging Face's, which needs transformers: pip install 'kilolayer[hf]'"
        ) from error
