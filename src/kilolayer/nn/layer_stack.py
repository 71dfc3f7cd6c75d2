"""Layers in turn: as modules, in checkpointed segments, or the lean way across their borders."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from kilolayer.nn.checkpointing import Segment, run_segments, segments
from kilolayer.nn.context import LayerContext
from kilolayer.nn.fused_layer import can_fuse
from kilolayer.nn.lean_layer import can_hold_norms
from kilolayer.nn.lean_segment import run_held, run_lean_segment

Call = Callable[[nn.Module, Tensor, LayerContext], Tensor]


def run_layers(
    layers: nn.ModuleList,
    x: Tensor,
    context: LayerContext,
    *,
    call: Call,
    kind: type[nn.Module],
    checkpoint_every: Segment = None,
) -> Tensor:
    """``x`` through every layer in turn.

    Args:
        layers: Transformer layers.
        x: the stream.
        context: what the layers see besides.
        call: calls one layer as a module, with the arguments of its kind.
        kind: class of the layers that may be run without being called, if nothing is attached to them.
        checkpoint_every: layers per checkpointed segment.
    """
    if checkpoint_every is not None and torch.is_grad_enabled():
        if can_hold_norms(layers, kind) and all(can_fuse(cast(Any, layer), x, context) for layer in layers):
            for segment in segments(list(layers), checkpoint_every):
                x = run_lean_segment(segment, x, context)
            return x
        steps = [partial(_call_at, call, layer, context) for layer in layers]
        has_dropout = any(isinstance(module, nn.Dropout) and module.p > 0 for module in layers.modules())
        return run_segments(steps, x, every=checkpoint_every, has_dropout=has_dropout)
    if context.cache is None and can_hold_norms(layers, kind):
        return run_held(list(layers), x, context)
    for layer in layers:
        x = call(layer, x, context)
    return x


def _call_at(call: Call, layer: nn.Module, context: LayerContext, x: Tensor) -> Tensor:
    return call(layer, x, context)
