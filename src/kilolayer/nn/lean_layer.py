"""The memory-lean way through a Transformer layer: the same function, less kept for the backward."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.modules import module as torch_module
from torch.utils._python_dispatch import _len_torch_dispatch_stack

from kilolayer.nn.activations import activation_name
from kilolayer.nn.attention import Attention
from kilolayer.nn.context import LayerContext
from kilolayer.nn.fused_layer import can_fuse, fuse_branch
from kilolayer.nn.lean import LEAN_ACTIVATIONS, LEAN_NORMS, activation_linear, norm_linear
from kilolayer.nn.module_calls import is_hooked, is_overridden

if TYPE_CHECKING:
    from kilolayer.nn.layer import TransformerLayer

Matrix = tuple[Tensor, Tensor | None]

PASSED_BY = ("_branches", "feed_forward", "leave_feed_forward", "join")
"""Methods of a layer whose work is done without calling them."""


def can_run_lean(layer: TransformerLayer) -> bool:
    """Whether the lean way is wanted, useful and sees everything that may have been attached to the layer.

    It calls matrices and norms as functions, so it steps aside for a module that was hooked or replaced; and it
    leaves a compiled graph to the compiler, which chooses what to recompute by itself, and forward-mode
    derivatives to the plain way, which has them.
    """
    if not layer.options.recompute_activations or not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return False
    if forward_ad._current_level >= 0:
        return False
    if torch_module._has_any_global_hook() or _len_torch_dispatch_stack():  # who looks on shall see the modules
        return False
    if is_overridden(layer, "TransformerLayer", PASSED_BY):
        return False
    return all(_is_plain(name, module) for name, module in layer.named_children())


def _is_plain(name: str, module: nn.Module) -> bool:
    # Dropout is called as a module, and so is an activation that has no name here.
    if isinstance(module, nn.Dropout):
        return True
    if name == "activation":
        return not is_hooked(module)
    # A parametrized, quantized or wrapped module has another type.
    if type(module) in LEAN_NORMS:
        return not is_hooked(module) and module.weight is not None
    return type(module) in (nn.Linear, Attention) and not is_hooked(module)


def can_hold_norms(layers: nn.ModuleList, kind: type[nn.Module]) -> bool:
    """Whether a stack of ``kind`` may pass from layer to layer without calling the layers as modules."""
    same = (layer for layer in layers if type(layer) is kind and not is_hooked(layer))
    return len(layers) == sum(can_run_lean(cast("TransformerLayer", layer)) for layer in same)


def run_lean(
    layer: TransformerLayer, x: Tensor, context: LayerContext, *, waiting: nn.Module | None = None
) -> tuple[Tensor, nn.Module | None]:
    """What :meth:`TransformerLayer.run` computes, every norm fused with the matrix that reads it.

    A post-norm is held back until the next branch's first matrix is at hand, the last one until the next
    layer's: ``waiting`` comes in with x and goes out with the result.
    """
    layer_in = x
    fuses = can_fuse(layer, x, context)
    for number in range(1, len(layer.scales) + 1):
        if fuses:
            x, waiting = fuse_branch(layer, number, x, context, waiting=waiting)
            continue
        is_cross = layer.attends_to_memory and number == 2
        attention = layer.multihead_attn if is_cross else layer.self_attn if number == 1 else None
        if attention is not None:
            skip, first = _enter(layer, number, x, waiting, attention.first_matrix(is_cross=is_cross))
            memory = context.memory if is_cross else None
            mask = context.memory_mask if is_cross else context.mask
            rotation = None if is_cross else context.rotation
            branch_out = attention.finish(first, memory, mask=mask, rotation=rotation)
        else:
            skip, first = _enter(layer, number, x, waiting, (layer.linear1.weight, layer.linear1.bias))
            branch_out = _leave_feed_forward(layer, first)
        layer_in = skip if number == 1 else layer_in
        x = layer.join(number, branch_out, skip, layer_in)
        waiting = layer.norm_in("post", number)
    return x, waiting


def _enter(
    layer: TransformerLayer, number: int, x: Tensor, waiting: nn.Module | None, matrix: Matrix
) -> tuple[Tensor, Tensor]:
    """The skip of a branch, and the output of its first matrix."""
    pre_norm = layer.norm_in("pre", number)
    scale = layer.scales[number - 1].norm_output_scale
    if pre_norm is not None:
        x = x if waiting is None else waiting(x)
        return x, norm_linear(x, pre_norm, *matrix, norm_scale=scale)[1]  # type: ignore[arg-type]
    if waiting is not None:
        return norm_linear(x, waiting, *matrix)  # type: ignore[arg-type]
    return x, F.linear(x, *matrix)


def _leave_feed_forward(layer: TransformerLayer, first: Tensor) -> Tensor:
    """Everything behind the first feed-forward matrix."""
    name = activation_name(layer.activation)
    drops = layer.training and layer.dropout.p > 0
    if name not in LEAN_ACTIVATIONS or drops or layer.inner_norm is not None:
        return layer.leave_feed_forward(layer.activation(first))
    return activation_linear(first, name, layer.linear2.weight, layer.linear2.bias)
