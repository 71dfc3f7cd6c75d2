"""A checkpointed segment of layers that run their branches as single steps: its input is kept, the rest computed again.

``torch.utils.checkpoint`` does the same for any code, and pays for it with two Python calls per tensor that is kept,
which at a narrow width is a quarter of the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from kilolayer.nn.context import LayerContext
from kilolayer.nn.fused_layer import layer_parameters
from kilolayer.nn.lean_layer import run_lean


def run_held(layers: Sequence[nn.Module], x: Tensor, context: LayerContext) -> Tensor:
    """``x`` through every layer in turn, past the layers' own calls, post-norms held back across their borders."""
    norm: nn.Module | None = None
    for one in layers:
        x, norm = run_lean(cast(Any, one), x, context, waiting=norm)
    return x if norm is None else norm(x)


def run_lean_segment(layers: Sequence[nn.Module], x: Tensor, context: LayerContext) -> Tensor:
    """:func:`run_held`, keeping x alone (and what the context holds) for the backward."""
    parameters = [parameter for layer in layers for parameter in layer_parameters(cast(Any, layer))]
    return LeanSegment.apply(layers, context, x, context.memory, *parameters)


class LeanSegment(torch.autograd.Function):
    """Forward without a graph; the backward computes the segment again, with one, and goes down that."""

    @staticmethod
    def forward(
        ctx: Any,
        layers: Sequence[nn.Module],
        context: LayerContext,
        x: Tensor,
        memory: Tensor | None,
        *parameters: nn.Parameter,
    ) -> Tensor:
        ctx.layers, ctx.context = layers, context._replace(memory=None)
        ctx.save_for_backward(x, memory)
        ctx.parameters = parameters
        return run_held(layers, x, context)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        _, _, x_wants, memory_wants, *_ = ctx.needs_input_grad
        x, memory = ctx.saved_tensors
        x = x.detach().requires_grad_(x_wants)
        memory = None if memory is None else memory.detach().requires_grad_(memory_wants)
        with torch.enable_grad():
            out = run_held(ctx.layers, x, ctx.context._replace(memory=memory))
        wanted = [tensor for tensor in (x, memory) if tensor is not None and tensor.requires_grad]
        grads = list(torch.autograd.grad(out, [*wanted, *ctx.parameters], grad))
        grad_x = grads.pop(0) if x_wants else None
        grad_memory = grads.pop(0) if memory is not None and memory_wants else None
        return None, None, grad_x, grad_memory, *grads
