"""What an operation's schema says: names of arguments, and which of them it overwrites."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

UNDECLARED_WRITES = {
    "native_batch_norm": ("running_mean", "running_var"),
    "cudnn_batch_norm": ("running_mean", "running_var"),
    "miopen_batch_norm": ("running_mean", "running_var"),
}
"""Operations that overwrite arguments without saying so in their schema."""


def tensors_in(tree: Any) -> list[Tensor]:
    """The tensors in nested lists, tuples, mappings and data classes, in order."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, Mapping):
        tree = tree.values()
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        tree = vars(tree).values()
    elif not isinstance(tree, (list, tuple)):
        return []
    return [tensor for part in tree for tensor in tensors_in(part)]


def base_name(func: Any) -> tuple[str, str]:
    """Namespace and name of an operation, the latter without the underscore of its in-place variant."""
    if not isinstance(func, torch._ops.OpOverload):
        return "higher_order", str(getattr(func, "__name__", func))
    namespace, _, name = func._schema.name.partition("::")
    return namespace, name[:-1] if name.endswith("_") and not name.endswith("__") else name


def name_arguments(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments by their names in the schema; defaults that were not given stay out."""
    if not isinstance(func, torch._ops.OpOverload):
        return {str(position): argument for position, argument in enumerate(args)} | kwargs
    names = [argument.name for argument in func._schema.arguments]
    return dict(zip(names, args, strict=False)) | kwargs


def written_tensors(func: Any, arguments: dict[str, Any]) -> list[Tensor]:
    """The tensors among the arguments that the operation overwrites."""
    if not isinstance(func, torch._ops.OpOverload):
        return []
    undeclared = UNDECLARED_WRITES.get(func._schema.name.partition("::")[2], ())
    names = [argument.name for argument in func._schema.arguments if argument.is_write or argument.name in undeclared]
    return [tensor for name in names for tensor in tensors_in(arguments.get(name))]
