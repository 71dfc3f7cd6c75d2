"""A residual branch as one step of autograd, its backward by hand: norm, matrices, what is between them, the sum.

What PyTorch would record as fifteen small steps costs, at a narrow width, as much as the matrices themselves. One
step also keeps less: the norm's input, query, key, value and their mix; the norm's input and the hidden layer.

Shape suffixes: B batch, T queries, S keys, H heads, D width of a head; ``rows`` are tensors with B and T in one.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

aten = torch.ops.aten

Gradients = tuple[Tensor | None, ...]

FUSED_ACTIVATIONS = ("relu", "gelu", "silu")


@dataclass(frozen=True)
class Frame:
    """What stands around a branch f: ``skip_scale * skip + branch_scale * f(y)``, ``y = norm(x)``.

    Attributes:
        norm: ``"layer"``, ``"rms"`` or ``None`` (y is x).
        eps: of the norm.
        skips_normed: whether the skip is y, as behind a post-norm, rather than x.
    """

    norm: str | None
    eps: float
    skips_normed: bool
    skip_scale: float
    branch_scale: float


@dataclass(frozen=True)
class HeadLayout:
    """How rows become heads."""

    num_heads: int
    batch_first: bool
    is_causal: bool

    def heads(self, x: Tensor) -> Tensor:
        """``(B, T, H D)``, or ``(T, B, H D)``, as ``(B, H, T, D)``."""
        split = x.view(*x.shape[:2], self.num_heads, -1)
        return split.transpose(1, 2) if self.batch_first else split.permute(1, 2, 0, 3)

    def rows(self, x_BHTD: Tensor) -> Tensor:
        """Heads side by side again, ``(B T, H D)``."""
        x = x_BHTD.transpose(1, 2) if self.batch_first else x_BHTD.permute(2, 0, 1, 3)
        return x.reshape(-1, x.shape[-2] * x.shape[-1])


def _normalize(frame: Frame, x: Tensor, gain: Tensor | None, shift: Tensor | None) -> tuple[Tensor, Any]:
    """y, and what the backward of the norm wants."""
    if frame.norm is None or gain is None:
        return x, None
    if frame.norm == "layer":
        y, mean, rstd = torch.native_layer_norm(x, list(x.shape[-1:]), gain, shift, frame.eps)
        return y, (mean, rstd)
    rstd = torch.rsqrt(x.square().mean(-1, keepdim=True).add_(frame.eps))
    x_hat = x * rstd
    return x_hat * gain, (x_hat, rstd)


def _leave_norm(
    frame: Frame, grad_y: Tensor, x: Tensor, gain: Tensor | None, shift: Tensor | None, kept: Any
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Gradients of x, gain and shift."""
    if frame.norm is None or gain is None:
        return grad_y, None, None
    if frame.norm == "layer":
        wanted = [True, True, shift is not None]
        grads = aten.native_layer_norm_backward(grad_y, x, list(x.shape[-1:]), *kept, gain, shift, wanted)
        return grads[0], grads[1], grads[2] if shift is not None else None
    x_hat, rstd = kept
    grad_x_hat = grad_y * gain
    along = (grad_x_hat * x_hat).mean(-1, keepdim=True)
    return rstd * (grad_x_hat - x_hat * along), (grad_y * x_hat).sum(0), None


def _join(frame: Frame, branch_out: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """The residual sum, in the branch's own memory."""
    if frame.branch_scale != 1.0:
        branch_out.mul_(frame.branch_scale)
    return branch_out.add_(y if frame.skips_normed else x, alpha=frame.skip_scale)


def _enter_backward(frame: Frame, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient rows of the sum, and of what the branch's last matrix returned."""
    rows = grad.reshape(-1, grad.shape[-1])
    return rows, rows if frame.branch_scale == 1.0 else rows * frame.branch_scale


def _leave_backward(
    frame: Frame, grad_rows: Tensor, grad_first: Tensor, weight: Tensor, norm_args: tuple[Any, ...]
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """From the output of the first matrix back through norm and skip: gradients of x, gain and shift."""
    if frame.skips_normed or frame.norm is None:
        grad_y = torch.addmm(grad_rows, grad_first, weight, beta=frame.skip_scale)
        return _leave_norm(frame, grad_y, *norm_args)
    grad_x, grad_gain, grad_shift = _leave_norm(frame, grad_first @ weight, *norm_args)
    return torch.add(grad_x, grad_rows, alpha=frame.skip_scale), grad_gain, grad_shift


def _affine(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return rows @ weight.t() if bias is None else torch.addmm(bias, rows, weight.t())


def _sum_rows(rows: Tensor, wanted: bool) -> Tensor | None:
    return rows.sum(0) if wanted else None


def _without_autocast() -> AbstractContextManager[Any]:
    """The forward ran without it, so the backward does, wherever it is called."""
    return torch.autocast("cpu", enabled=False) if torch.is_autocast_enabled("cpu") else nullcontext()


class FeedForwardBranch(torch.autograd.Function):
    """``skip_scale * skip + branch_scale * (act(y W1^T + b1) W2^T + b2)``, keeping x and the hidden layer."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gain: Tensor | None, shift: Tensor | None, w1: Tensor, b1: Tensor | None, w2: Tensor,
        b2: Tensor | None, frame: Frame, activation: str,
    ) -> Tensor:  # fmt: skip
        rows = x.reshape(-1, x.shape[-1])
        y = _normalize(frame, rows, gain, shift)[0]
        hidden = _affine(y, w1, b1)
        # ReLU's backward reads its output, the others' read their argument.
        activated = hidden.relu_() if activation == "relu" else _activate(hidden, activation)
        out = _join(frame, _affine(activated, w2, b2), y, rows)
        ctx.frame, ctx.activation, ctx.shape = frame, activation, x.shape
        ctx.has_bias = (b1 is not None, b2 is not None)
        ctx.save_for_backward(rows, hidden, gain, shift, w1, w2)
        return out.view(x.shape)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        with _without_autocast():
            return _feed_forward_backward(ctx, grad)


def _feed_forward_backward(ctx: Any, grad: Tensor) -> Gradients:
    rows, hidden, gain, shift, w1, w2 = ctx.saved_tensors
    frame, (has_b1, has_b2) = ctx.frame, ctx.has_bias
    y, kept = _normalize(frame, rows, gain, shift)
    grad_rows, grad_out = _enter_backward(frame, grad)
    activated = hidden if ctx.activation == "relu" else _activate(hidden, ctx.activation)
    grad_w2, grad_b2 = grad_out.t() @ activated, _sum_rows(grad_out, has_b2)
    grad_hidden = _activation_backward(grad_out @ w2, hidden, ctx.activation)
    grad_w1, grad_b1 = grad_hidden.t() @ y, _sum_rows(grad_hidden, has_b1)
    norm_args = (rows, gain, shift, kept)
    grad_x, grad_gain, grad_shift = _leave_backward(frame, grad_rows, grad_hidden, w1, norm_args)
    return grad_x.view(ctx.shape), grad_gain, grad_shift, grad_w1, grad_b1, grad_w2, grad_b2, None, None


def _activate(hidden: Tensor, activation: str) -> Tensor:
    return F.gelu(hidden) if activation == "gelu" else F.silu(hidden)


def _activation_backward(grad: Tensor, hidden: Tensor, activation: str) -> Tensor:
    if activation == "relu":
        return aten.threshold_backward(grad, hidden, 0)
    return aten.gelu_backward(grad, hidden) if activation == "gelu" else aten.silu_backward(grad, hidden)


class AttentionBranch(torch.autograd.Function):
    """``skip_scale * skip + branch_scale * (softmax(q k^T / sqrt(D)) v Wo^T + bo)``, by the CPU's flash kernel.

    ``q, k, v`` are of y, or ``k, v`` of a memory. Kept are x, q, k, v and their mix.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, memory: Tensor | None, gain: Tensor | None, shift: Tensor | None, w_in: Tensor,
        b_in: Tensor | None, w_out: Tensor, b_out: Tensor | None, mask: Tensor | None, frame: Frame,
        layout: HeadLayout,
    ) -> Tensor:  # fmt: skip
        width = x.shape[-1]
        rows = x.reshape(-1, width)
        y = _normalize(frame, rows, gain, shift)[0]
        if memory is None:
            packed = _affine(y, w_in, b_in).view(*x.shape[:-1], 3 * width)
            q, k, v = (layout.heads(part) for part in packed.split(width, -1))
        else:
            b_q, b_kv = (None, None) if b_in is None else (b_in[:width], b_in[width:])
            q = layout.heads(_affine(y, w_in[:width], b_q).view(x.shape))
            packed = _affine(memory.reshape(-1, width), w_in[width:], b_kv).view(*memory.shape[:-1], 2 * width)
            k, v = (layout.heads(part) for part in packed.split(width, -1))
        mixed, logsumexp = aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, layout.is_causal, attn_mask=mask
        )
        out = _join(frame, _affine(layout.rows(mixed), w_out, b_out), y, rows)
        ctx.frame, ctx.layout, ctx.shape = frame, layout, x.shape
        ctx.has_bias = (b_in is not None, b_out is not None)
        ctx.save_for_backward(rows, memory, q, k, v, mixed, logsumexp, gain, shift, w_in, w_out, mask)
        return out.view(x.shape)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        with _without_autocast():
            return _attention_backward(ctx, grad)


def _attention_backward(ctx: Any, grad: Tensor) -> Gradients:
    rows, memory, q, k, v, mixed, logsumexp, gain, shift, w_in, w_out, mask = ctx.saved_tensors
    frame, layout, (has_b_in, has_b_out) = ctx.frame, ctx.layout, ctx.has_bias
    y, kept = _normalize(frame, rows, gain, shift)
    grad_rows, grad_out = _enter_backward(frame, grad)
    grad_w_out, grad_b_out = grad_out.t() @ layout.rows(mixed), _sum_rows(grad_out, has_b_out)
    grad_mixed = layout.heads((grad_out @ w_out).view(ctx.shape))
    parts = aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad_mixed, q, k, v, mixed, logsumexp, 0.0, layout.is_causal, attn_mask=mask
    )
    grad_q, grad_k, grad_v = (layout.rows(part) for part in parts)
    norm_args = (rows, gain, shift, kept)
    if memory is None:
        grad_first, w_first, grad_memory = torch.cat((grad_q, grad_k, grad_v), 1), w_in, None
        grad_w_in, grad_b_in = grad_first.t() @ y, _sum_rows(grad_first, has_b_in)
    else:
        width = rows.shape[-1]
        grad_first, w_first = grad_q, w_in[:width]
        grad_kv, memory_rows = torch.cat((grad_k, grad_v), 1), memory.reshape(-1, width)
        grad_w_in = torch.cat((grad_q.t() @ y, grad_kv.t() @ memory_rows))
        grad_b_in = torch.cat((grad_q.sum(0), grad_kv.sum(0))) if has_b_in else None
        grad_memory = (grad_kv @ w_in[width:]).view(memory.shape) if ctx.needs_input_grad[1] else None
    grad_x, grad_gain, grad_shift = _leave_backward(frame, grad_rows, grad_first, w_first, norm_args)
    grads = (grad_gain, grad_shift, grad_w_in, grad_b_in, grad_w_out, grad_b_out)
    return grad_x.view(ctx.shape), grad_memory, *grads, None, None, None
