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
    return LeanSegment.apply(layers, context, x, context.memory, *_parameters(layers))


def _parameters(layers: Sequence[nn.Module]) -> list[Tensor]:
    """Each once, for a tied one has one gradient."""
    found = {id(one): one for layer in layers for one in layer_parameters(cast(Any, layer))}
    return list(found.values())


class LeanSegment(torch.autograd.Function):
    """Forward without a graph; the backward computes the segment again, with one, and goes down that."""

    @staticmethod
    def forward(
        ctx: Any,
        layers: Sequence[nn.Module],
        context: LayerContext,
        x: Tensor,
        memory: Tensor | None,
        *parameters: Tensor,
    ) -> Tensor:
        ctx.layers, ctx.context = layers, context._replace(memory=None)
        # Masks and parameters are kept so that a change of them before the backward is an error.
        ctx.save_for_backward(x, memory, context.mask.tensor, context.memory_mask.tensor, *parameters)
        return run_held(layers, x, context)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        _, _, x_wants, memory_wants, *_ = ctx.needs_input_grad
        x, memory, _, _, *parameters = ctx.saved_tensors
        if [id(one) for one in _parameters(ctx.layers)] != [id(one) for one in parameters]:
            raise RuntimeError(
                "parameters of a checkpointed layer were exchanged between its forward and its backward, as "
                "functional_call does; use checkpoint_every=None there"
            )
        x = x.detach().requires_grad_(x_wants)
        memory = None if memory is None else memory.detach().requires_grad_(memory_wants)
        with torch.enable_grad(), torch.autocast("cpu", enabled=False):
            out = run_held(ctx.layers, x, ctx.context._replace(memory=memory))
        wanted = [tensor for tensor in (x, memory) if tensor is not None and tensor.requires_grad]
        grads = list(torch.autograd.grad(out, [*wanted, *parameters], grad))
        grad_x = grads.pop(0) if x_wants else None
        grad_memory = grads.pop(0) if memory is not None and memory_wants else None
        return None, None, grad_x, grad_memory, *grads
