"""Which layers may run their branches as single steps of autograd, and how."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from kilolayer.nn.activations import activation_name
from kilolayer.nn.attention import Attention
from kilolayer.nn.context import LayerContext
from kilolayer.nn.fused_branch import FUSED_ACTIVATIONS, AttentionBranch, FeedForwardBranch, Frame, HeadLayout
from kilolayer.nn.masks import AttentionMask
from kilolayer.nn.module_calls import is_hooked
from kilolayer.schemes import BranchScales

if TYPE_CHECKING:
    from kilolayer.nn.layer import TransformerLayer
    from kilolayer.nn.options import LayerOptions

FUSED_DTYPES = (torch.float32, torch.float64)


def can_fuse(layer: TransformerLayer, x: Tensor, context: LayerContext) -> bool:
    """Whether every branch of a layer that may run lean has a hand-written step: on the CPU, with a fixed skip and
    branch scale, plain multi-head attention, nothing dropped, nothing frozen, nothing attached to its parts.
    """
    if x.device.type != "cpu" or x.dtype not in FUSED_DTYPES or type(x) is not Tensor:
        return False
    if torch.is_autocast_enabled("cpu") or not torch.backends.cuda.flash_sdp_enabled():
        return False
    if torch._C._are_functorch_transforms_active() or context.rotation is not None:
        return False
    if not layer.has_plain_branches or not _fits(layer, x, context):
        return False
    if activation_name(layer.activation) not in FUSED_ACTIVATIONS or not _are_plain(layer):
        return False
    return all(
        isinstance(one, nn.Parameter) and one.requires_grad and one.dtype == x.dtype for one in layer_parameters(layer)
    )


def _fits(layer: TransformerLayer, x: Tensor, context: LayerContext) -> bool:
    """Whether the kernel, which checks nothing, would read inside of its inputs: else many steps find the words."""
    if x.dim() != 3 or not x.numel() or x.shape[-1] != layer.options.width:
        return False
    batch, length = (0, 1) if layer.options.batch_first else (1, 0)
    sizes = (x.shape[batch], layer.options.num_heads, x.shape[length])
    if not _mask_fits(context.mask.tensor, (*sizes, x.shape[length])):
        return False
    if not layer.attends_to_memory:
        return True
    memory = context.memory
    if memory is None or memory.dim() != 3 or not memory.numel() or type(memory) is not Tensor:
        return False
    if memory.dtype != x.dtype or memory.device != x.device or memory.shape[-1] != x.shape[-1]:
        return False
    return memory.shape[batch] == x.shape[batch] and _mask_fits(
        context.memory_mask.tensor, (*sizes, memory.shape[length])
    )


def _mask_fits(mask: Tensor | None, sizes: tuple[int, ...]) -> bool:
    if mask is None:
        return True
    if mask.requires_grad or mask.device.type != "cpu" or not 2 <= mask.dim() <= 4:
        return False
    return all(one in (1, size) for one, size in zip(mask.shape[::-1], sizes[::-1], strict=False))


def _are_plain(layer: TransformerLayer) -> bool:
    """Whether calling the parts that a step passes by would do nothing else than it does."""
    for module in layer._modules.values():
        if isinstance(module, nn.Dropout) and not _does_nothing(module):
            return False
        if isinstance(module, Attention):
            out = module.out_proj
            if type(out) is not nn.Linear or is_hooked(out) or (module.training and module.dropout > 0):
                return False
    return True


def _does_nothing(dropout: nn.Dropout) -> bool:
    return type(dropout) is nn.Dropout and not is_hooked(dropout) and (dropout.p == 0 or not dropout.training)


def layer_parameters(layer: TransformerLayer) -> Iterator[nn.Parameter]:
    """As ``layer.parameters()``, in a tenth of its time."""
    for module in layer._modules.values():
        if module is not None:
            yield from (parameter for parameter in module._parameters.values() if parameter is not None)
            for inner in module._modules.values():
                if inner is not None:
                    yield from (parameter for parameter in inner._parameters.values() if parameter is not None)


def has_plain_branches(options: LayerOptions, scales: Sequence[BranchScales]) -> bool:
    """Whether every branch is ``skip_scale * skip + branch_scale * f(y)`` with plain attention or feed-forward as f."""
    if options.qk_norm or (options.num_kv_heads or options.num_heads) != options.num_heads:
        return False
    return all(
        one.has_skip
        and not one.learned
        and not one.skip_learned
        and not one.layer_skip_scale
        and one.norm_output_scale == 1.0
        and not {"end", "inner"} & set(one.norm_slots)
        for one in scales
    )


def fuse_branch(
    layer: TransformerLayer, number: int, x: Tensor, context: LayerContext, *, waiting: nn.Module | None
) -> tuple[Tensor, nn.Module | None]:
    """x behind branch ``number`` of the layer, and the post-norm that waits for the next one."""
    pre_norm = layer.norm_in("pre", number)
    if pre_norm is not None and waiting is not None:
        x, waiting = waiting(x), None
    norm = pre_norm if waiting is None else waiting
    scales = layer.scales[number - 1]
    frame = Frame(*_norm_kind(norm, x), pre_norm is None, scales.skip_scale, scales.branch_scale)
    gain: Tensor | None = getattr(norm, "weight", None)
    shift: Tensor | None = getattr(norm, "bias", None)
    if number == len(layer.scales):
        one, two = layer.linear1, layer.linear2
        name = activation_name(layer.activation)
        x = FeedForwardBranch.apply(x, gain, shift, one.weight, one.bias, two.weight, two.bias, frame, name)
    else:
        x = _attend(layer, number, x, context, frame, (gain, shift))
    return x, layer.norm_in("post", number)


def _norm_kind(norm: nn.Module | None, x: Tensor) -> tuple[str | None, float]:
    if norm is None:
        return None, 0.0
    eps: float | None = norm.eps  # type: ignore[assignment]
    return "layer" if isinstance(norm, nn.LayerNorm) else "rms", torch.finfo(x.dtype).eps if eps is None else eps


def _attend(
    layer: TransformerLayer,
    number: int,
    x: Tensor,
    context: LayerContext,
    frame: Frame,
    norm_args: tuple[Tensor | None, Tensor | None],
) -> Tensor:
    is_cross = number == 2  # the third branch of a layer that has one is the feed-forward
    attention = layer.multihead_attn if is_cross else layer.self_attn
    memory, mask = (context.memory, context.memory_mask) if is_cross else (None, context.mask)
    layout = HeadLayout(attention.num_heads, attention.batch_first, mask.is_causal)
    out = attention.out_proj
    weights = (attention.in_proj_weight, attention.in_proj_bias, out.weight, out.bias)
    return AttentionBranch.apply(x, memory, *norm_args, *weights, _additive(mask, x), frame, layout)


def _additive(mask: AttentionMask, x: Tensor) -> Tensor | None:
    """The mask as numbers added to the logits, with the four dimensions the kernel expects."""
    tensor = mask.tensor
    if tensor is None:
        return None
    if tensor.dtype == torch.bool:
        tensor = torch.zeros_like(tensor, dtype=x.dtype).masked_fill_(~tensor, -torch.inf)
    return tensor.to(x.dtype)[(None,) * (4 - tensor.dim())]
