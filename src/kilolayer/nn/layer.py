"""One Transformer layer from its parts: branches, norm slots and scales, named as torch.nn names them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from kilolayer.nn.activations import resolve_activation
from kilolayer.nn.attention import Attention
from kilolayer.nn.blocks import build_linear
from kilolayer.nn.context import NO_CONTEXT, LayerContext
from kilolayer.nn.fused_layer import has_plain_branches
from kilolayer.nn.layer_place import LayerPlace
from kilolayer.nn.lean_layer import can_run_lean, run_lean
from kilolayer.nn.options import LayerOptions

Branch = Callable[[Tensor], Tensor]


class TransformerLayer(nn.Module):
    """Residual branches of self-attention, cross-attention if ``attends_to_memory``, and feed-forward.

    Branch number i (from 1) with the scales of its scheme computes

        ``x' = post_norm(skip_scale * x + layer_skip_scale * x_layer + branch_scale * end_norm(f(pre_norm(x))))``

    where ``x_layer`` is the layer's input. The first norm slot a branch fills is the module ``norm{i}``, which
    is where torch.nn keeps its only one; further slots are ``{slot}_norm{i}``. A trained scale is the parameter
    ``branch_scale{i}``, ``branch_scale`` (shared by the branches of the layer) or ``skip_scale{i}``. A gated
    feed-forward packs ``[up, gate]`` in the rows of ``linear1``.

    Values are left to an initialisation plan, see :func:`kilolayer.init.plan_init`.

    Shape:
        - x: ``(batch, length, width)``, or ``(length, batch, width)`` unless ``batch_first``
        - memory: the same layout, any length
        - output: as x
    """

    def __init__(self, options: LayerOptions, place: LayerPlace, *, attends_to_memory: bool = False):
        super().__init__()
        self.options = options
        self.place = place
        scales = place.scales(3 if attends_to_memory else 2)
        self.scales = scales
        self.attends_to_memory = attends_to_memory
        self.has_plain_branches = has_plain_branches(options, scales)
        activation = resolve_activation(options.activation)[1]
        # One instance per layer, since an activation may hold parameters.
        self.activation = copy.deepcopy(activation) if isinstance(activation, nn.Module) else activation
        self.norm_names: dict[tuple[str, int], str] = {}
        factory = options.factory
        self.self_attn = Attention(options, inner_norm=self._inner_norm(1, options.width))
        if attends_to_memory:
            self.multihead_attn = Attention(options, inner_norm=self._inner_norm(2, options.width))
        hidden_rows = options.hidden * (2 if options.is_gated else 1)
        self.linear1 = build_linear(options.width, hidden_rows, bias=options.bias, **factory)
        self.dropout = nn.Dropout(options.dropout)
        self.inner_norm = self._inner_norm(len(scales), options.hidden)
        self.linear2 = build_linear(options.hidden, options.width, bias=options.bias, **factory)
        for number in range(1, len(scales) + 1):
            self._add_norms(number)
        for number in range(1, len(scales) + 1):
            setattr(self, f"dropout{number}", nn.Dropout(options.dropout))
            self._add_trained_scales(number)

    def _inner_norm(self, number: int, width: int) -> nn.Module | None:
        return self.options.build_norm(width) if "inner" in self.scales[number - 1].norm_slots else None

    def _add_norms(self, number: int) -> None:
        slots = [slot for slot in self.scales[number - 1].norm_slots if slot != "inner"]
        for position, slot in enumerate(slots):
            name = f"norm{number}" if position == 0 else f"{slot}_norm{number}"
            self.norm_names[slot, number] = name
            setattr(self, name, self.options.build_norm())

    def _add_trained_scales(self, number: int) -> None:
        scales = self.scales[number - 1]
        if scales.learned and scales.learned_per == "layer":
            # Every branch of the layer reads the one that the first brings along.
            if number == 1:
                self.register_parameter("branch_scale", self._new_scale(1))
        elif scales.learned:
            size = self.options.width if scales.learned_per == "channel" else 1
            self.register_parameter(f"branch_scale{number}", self._new_scale(size))
        if scales.skip_learned:
            self.register_parameter(f"skip_scale{number}", self._new_scale(self.options.width))

    def _new_scale(self, size: int) -> nn.Parameter:
        return nn.Parameter(torch.empty(size, **self.options.factory))

    @property
    def norm_first(self) -> bool:
        """Whether every branch has its norm in front, as torch.nn's attribute of this name says."""
        return all(scales.norm_placement == "pre" for scales in self.scales)

    def norm_in(self, slot: str, number: int) -> nn.Module | None:
        """The norm in a slot of branch ``number``, if the slot is filled."""
        name = self.norm_names.get((slot, number))
        return None if name is None else getattr(self, name)

    def run(self, x: Tensor, context: LayerContext = NO_CONTEXT) -> Tensor:
        """The layer's output, by the lean way where it is open."""
        if context.cache is None and can_run_lean(self):
            x, norm = run_lean(self, x, context)
            return x if norm is None else norm(x)
        layer_in = x
        for number, branch in enumerate(self._branches(context), start=1):
            pre_norm, post_norm = self.norm_in("pre", number), self.norm_in("post", number)
            branch_in = x if pre_norm is None else pre_norm(x)
            norm_scale = self.scales[number - 1].norm_output_scale
            branch_out = branch(branch_in if norm_scale == 1.0 else branch_in * norm_scale)
            x = self.join(number, branch_out, x, layer_in)
            x = x if post_norm is None else post_norm(x)
        return x

    forward = run

    def _branches(self, context: LayerContext) -> Iterator[Branch]:
        yield lambda h: self.self_attn(h, mask=context.mask, rotation=context.rotation, cache=context.cache)
        if self.attends_to_memory:
            yield lambda h: self.multihead_attn(h, context.memory, mask=context.memory_mask, cache=context.cache)
        yield self.feed_forward

    def feed_forward(self, h: Tensor) -> Tensor:
        """``linear2(inner_norm(dropout(activation(linear1(h)))))``."""
        return self.leave_feed_forward(self.activation(self.linear1(h)))

    def leave_feed_forward(self, h: Tensor) -> Tensor:
        """What stands behind the activation."""
        h = self.dropout(h)
        return self.linear2(h if self.inner_norm is None else self.inner_norm(h))

    def join(self, number: int, branch_out: Tensor, skip: Tensor, layer_in: Tensor) -> Tensor:
        """The residual sum of branch ``number``, in front of its post-norm."""
        scales = self.scales[number - 1]
        end_norm = self.norm_in("end", number)
        if end_norm is not None:
            branch_out = end_norm(branch_out)
        branch_out = getattr(self, f"dropout{number}")(branch_out)
        if scales.learned:
            name = "branch_scale" if scales.learned_per == "layer" else f"branch_scale{number}"
            branch_out = getattr(self, name) * branch_out
        elif scales.branch_scale != 1.0:
            branch_out = scales.branch_scale * branch_out
        if not scales.has_skip:
            return branch_out
        if scales.skip_learned:
            total = getattr(self, f"skip_scale{number}") * skip + branch_out
        else:
            total = torch.add(branch_out, skip, alpha=scales.skip_scale)
        if scales.layer_skip_scale:
            total = torch.add(total, layer_in, alpha=scales.layer_skip_scale)
        return total

    def extra_repr(self) -> str:
        parts = [f"skip_scale={scales.skip_scale:.6g}" for scales in self.scales[:1]]
        return ", ".join([*parts, f"norm_placement={self.scales[0].norm_placement}"])
