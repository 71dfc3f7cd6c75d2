"""How the library's objects show themselves in a notebook."""

from __future__ import annotations

import importlib


def repr_html(self: object) -> str:
    """The object as a small piece of HTML; a class takes it as ``_repr_html_ = repr_html``."""
    # By name: the rooms that define the objects come before the report on the street, and must not import it.
    return str(importlib.import_module("kilolayer.report.notebook").show_html(self))
