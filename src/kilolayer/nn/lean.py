"""Matrices that recompute what stands before them, a norm or an activation, instead of storing it.

A linear layer keeps its input for the backward. Where that input is cheap to compute from a tensor that is kept
anyway (a norm's output from the norm's input, an activation from its argument), it is computed again: a layer
with a four times wider feed-forward keeps 11 numbers per token and channel, instead of 17 with GELU.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

aten = torch.ops.aten

LEAN_NORMS = (nn.LayerNorm, nn.RMSNorm)
LEAN_ACTIVATIONS = ("gelu", "silu", "swiglu")
"""ReLU is not among them: its output is all that its own backward needs, so nothing is kept twice."""


def norm_linear(
    x: Tensor, norm: nn.LayerNorm | nn.RMSNorm, weight: Tensor, bias: Tensor | None, *, norm_scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """``y = norm_scale * norm(x)`` and ``y weight^T + bias``, keeping x alone for the backward.

    Shape: x ``(*, width)``, weight ``(out, width)`` -> ``(*, width)``, ``(*, out)``.
    """
    norm_weight: Tensor = norm.weight
    norm_bias: Tensor | None = getattr(norm, "bias", None)
    if norm_scale != 1.0:
        norm_weight = norm_weight * norm_scale
        norm_bias = None if norm_bias is None else norm_bias * norm_scale
    function = LayerNormLinear if isinstance(norm, nn.LayerNorm) else RMSNormLinear
    device_type = x.device.type
    if not _autocasts(device_type):
        return function.apply(x, norm_weight, norm_bias, _eps(norm, x), weight, bias)
    low = torch.get_autocast_dtype(device_type)
    x, weight, bias = x.to(norm_weight.dtype), weight.to(low), None if bias is None else bias.to(low)
    with torch.autocast(device_type, enabled=False):
        return function.apply(x, norm_weight, norm_bias, _eps(norm, x), weight, bias)


def activation_linear(h: Tensor, activation: str, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``act(h) weight^T + bias``, keeping h alone for the backward.

    Shape: h ``(*, hidden)``, gated ``(*, 2 hidden)``, weight ``(out, hidden)`` -> ``(*, out)``.
    """
    device_type = h.device.type
    if not _autocasts(device_type):
        return ActivationLinear.apply(h, activation, weight, bias)
    low = torch.get_autocast_dtype(device_type)
    weight, bias = weight.to(low), None if bias is None else bias.to(low)
    with torch.autocast(device_type, enabled=False):
        return ActivationLinear.apply(h.to(low), activation, weight, bias)


def _autocasts(device_type: str) -> bool:
    """Whether autocast is on; the meta device, for one, has none."""
    return torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type)


def _eps(norm: nn.LayerNorm | nn.RMSNorm, x: Tensor) -> float:
    return torch.finfo(x.dtype).eps if norm.eps is None else norm.eps


class LayerNormLinear(torch.autograd.Function):
    """``y = LN(x)``, ``z = y W^T + b``: both are returned, neither is kept."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, norm_weight: Tensor, norm_bias: Tensor | None, eps: float, weight: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        y = F.layer_norm(x, x.shape[-1:], norm_weight, norm_bias, eps)
        return y, F.linear(y.to(weight.dtype), weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, norm_weight, norm_bias, ctx.eps, weight, _ = inputs
        ctx.save_for_backward(x, norm_weight, norm_bias, weight)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor | None, grad_z: Tensor | None) -> tuple[Tensor | None, ...]:
        x, norm_weight, norm_bias, weight = ctx.saved_tensors
        shape = list(x.shape[-1:])
        y, mean, rstd = torch.native_layer_norm(x, shape, norm_weight, norm_bias, ctx.eps)
        grad_y, grad_weight, grad_bias = _linear_backward(ctx.needs_input_grad[4:], y, weight, grad_y, grad_z)
        if grad_y is None:
            return None, None, None, None, grad_weight, grad_bias
        wanted = list(ctx.needs_input_grad[:3])
        grads = aten.native_layer_norm_backward(grad_y, x, shape, mean, rstd, norm_weight, norm_bias, wanted)
        grad_x, grad_norm_weight, grad_norm_bias = (
            grad if want else None for grad, want in zip(grads, wanted, strict=True)
        )
        return grad_x, grad_norm_weight, grad_norm_bias, None, grad_weight, grad_bias


class RMSNormLinear(torch.autograd.Function):
    """``y = x / rms(x) * g``, ``z = y W^T + b``: both are returned, neither is kept."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, norm_weight: Tensor, norm_bias: None, eps: float, weight: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        y = F.rms_norm(x, x.shape[-1:], norm_weight, eps)
        return y, F.linear(y.to(weight.dtype), weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, norm_weight, _, ctx.eps, weight, _ = inputs
        ctx.save_for_backward(x, norm_weight, weight)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor | None, grad_z: Tensor | None) -> tuple[Tensor | None, ...]:
        x, norm_weight, weight = ctx.saved_tensors
        wide = torch.promote_types(x.dtype, torch.float32)
        rstd = torch.rsqrt(x.to(wide).square().mean(-1, keepdim=True) + ctx.eps)
        x_hat = x.to(wide) * rstd
        y = (x_hat * norm_weight).to(x.dtype)
        grad_y, grad_weight, grad_bias = _linear_backward(ctx.needs_input_grad[4:], y, weight, grad_y, grad_z)
        if grad_y is None:
            return None, None, None, None, grad_weight, grad_bias
        grad_x_hat = grad_y * norm_weight
        along = (grad_x_hat * x_hat).mean(-1, keepdim=True)
        grad_x = (rstd * (grad_x_hat - x_hat * along)).to(x.dtype)
        grad_norm_weight = (grad_y * x_hat).flatten(0, -2).sum(0).to(norm_weight.dtype)
        return grad_x, grad_norm_weight, None, None, grad_weight, grad_bias


def _linear_backward(
    wanted: tuple[bool, ...], y: Tensor, weight: Tensor, grad_y: Tensor | None, grad_z: Tensor | None
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of y (all there are together), weight and bias, where z = y W^T + b and y itself is used too."""
    if grad_z is None:
        return grad_y, None, None
    through = (grad_z @ weight).to(y.dtype)
    grad_y = through if grad_y is None else through + grad_y
    rows = grad_z.flatten(0, -2)
    grad_weight = rows.t() @ y.to(weight.dtype).flatten(0, -2) if wanted[0] else None
    grad_bias = rows.sum(0) if wanted[1] else None
    return grad_y, grad_weight, grad_bias


class ActivationLinear(torch.autograd.Function):
    """``act(h) W^T + b``, keeping h."""

    generate_vmap_rule = True

    @staticmethod
    def forward(h: Tensor, activation: str, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(_activate(h, activation), weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        h, ctx.activation, weight, _ = inputs
        ctx.save_for_backward(h, weight)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        h, weight = ctx.saved_tensors
        rows = grad_out.flatten(0, -2)
        grad_weight = grad_bias = grad_h = None
        if ctx.needs_input_grad[2]:
            grad_weight = rows.t() @ _activate(h, ctx.activation).flatten(0, -2)
        if ctx.needs_input_grad[3]:
            grad_bias = rows.sum(0)
        if ctx.needs_input_grad[0]:
            grad_h = _activation_backward(grad_out @ weight, h, ctx.activation)
        return grad_h, None, grad_weight, grad_bias


def _activate(h: Tensor, activation: str) -> Tensor:
    if activation == "gelu":
        return F.gelu(h)
    if activation == "silu":
        return F.silu(h)
    up, gate = h.chunk(2, dim=-1)
    return up * F.silu(gate)


def _activation_backward(grad: Tensor, h: Tensor, activation: str) -> Tensor:
    if activation == "gelu":
        return aten.gelu_backward(grad, h)
    if activation == "silu":
        return _silu_backward(grad, h)
    up, gate = h.chunk(2, dim=-1)
    return torch.cat((grad * F.silu(gate), _silu_backward(grad * up, gate)), dim=-1)


def _silu_backward(grad: Tensor, x: Tensor) -> Tensor:
    if not torch.is_grad_enabled():
        return aten.silu_backward(grad, x)
    # The kernel has no derivative of its own, which a gradient of a gradient needs.
    sigmoid = torch.sigmoid(x)
    return grad * sigmoid * (1 + x * (1 - sigmoid))
