"""Fully qualified names without what wrappers add to them."""

from __future__ import annotations

from torch import nn

WRAPPER_NAMES = ("_orig_mod", "_checkpoint_wrapped_module")
"""Attributes under which ``torch.compile`` and PyTorch's checkpoint wrapper keep the module they wrap."""


def clean_name(name: str) -> str:
    """A fully qualified name without the wrappers' own parts."""
    return ".".join(part for part in name.split(".") if part not in WRAPPER_NAMES)


def modules_by_name(model: nn.Module) -> dict[str, nn.Module]:
    """The modules of a model; of a wrapper and what it wraps the latter."""
    return {clean_name(path): module for path, module in model.named_modules()}
