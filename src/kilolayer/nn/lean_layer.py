"""The memory-lean way through a Transformer layer: the same function, less kept for the backward."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from kilolayer.nn.activations import activation_name
from kilolayer.nn.attention import Attention
from kilolayer.nn.lean import LEAN_ACTIVATIONS, LEAN_NORMS, activation_linear, norm_linear
from kilolayer.nn.masks import AttentionMask
from kilolayer.nn.positions import Rotation

if TYPE_CHECKING:
    from kilolayer.nn.layer import TransformerLayer

Matrix = tuple[Tensor, Tensor | None]

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def can_run_lean(layer: TransformerLayer) -> bool:
    """Whether the lean way is wanted, useful and sees everything that may have been attached to the layer.

    It calls matrices and norms as functions, so it steps aside for a module that was hooked or replaced; and it
    leaves a compiled graph to the compiler, which chooses what to recompute by itself.
    """
    if not layer.options.recompute_activations or not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return False
    if torch_module._has_any_global_hook():
        return False
    return all(_is_plain(name, module) for name, module in layer.named_children())


def _is_plain(name: str, module: nn.Module) -> bool:
    # Dropout is called as a module, and so is an activation that has no name here.
    if isinstance(module, nn.Dropout):
        return True
    if name == "activation":
        return not _is_hooked(module)
    # A parametrized, quantized or wrapped module has another type.
    if type(module) in LEAN_NORMS:
        return not _is_hooked(module) and module.weight is not None
    return type(module) in (nn.Linear, Attention) and not _is_hooked(module)


def _is_hooked(module: nn.Module) -> bool:
    return any(module.__dict__[name] for name in HOOKS)


def run_lean(
    layer: TransformerLayer,
    x: Tensor,
    memory: Tensor | None,
    *,
    mask: AttentionMask,
    memory_mask: AttentionMask,
    rotation: Rotation | None,
) -> Tensor:
    """What :meth:`TransformerLayer.run` computes, every norm fused with the matrix that reads it.

    A post-norm is held back until the next branch's first matrix is at hand.
    """
    layer_in = x
    waiting: nn.Module | None = None
    for number in range(1, len(layer.scales) + 1):
        is_cross = layer.attends_to_memory and number == 2
        attention = layer.multihead_attn if is_cross else layer.self_attn if number == 1 else None
        if attention is not None:
            skip, first = _enter(layer, number, x, waiting, attention.first_matrix(is_cross=is_cross))
            branch_out = attention.finish(
                first,
                memory if is_cross else None,
                mask=memory_mask if is_cross else mask,
                rotation=None if is_cross else rotation,
            )
        else:
            skip, first = _enter(layer, number, x, waiting, (layer.linear1.weight, layer.linear1.bias))
            branch_out = _leave_feed_forward(layer, first)
        x = layer.join(number, branch_out, skip, layer_in)
        waiting = layer.norm_in("post", number)
    return x if waiting is None else waiting(x)


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
