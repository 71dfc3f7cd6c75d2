"""A deep MLP under any scheme: input projection, blocks of constant width, optional final norm, head."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kilolayer.init import apply_init, plan_deep_mlp
from kilolayer.nn.activations import get_elementwise
from kilolayer.nn.blocks import ChainBlock, FeedForward, Residual, ScaledNorm, build_linear
from kilolayer.nn.norms import build_norm
from kilolayer.schemes import BranchScales, Depth, Scheme, get_scheme


class DeepMLP(nn.Module):
    """``head(final_norm(blocks(input_projection(x))))``.

    Shape: ``(batch, in_features) -> (batch, num_classes)``.

    Examples:
        >>> import torch
        >>> model = DeepMLP(nn.Linear(8, 4), [ChainBlock(nn.Linear(4, 4))], nn.Linear(4, 3), final_norm=nn.LayerNorm(4))
        >>> model(torch.randn(2, 8)).shape
        torch.Size([2, 3])
    """

    def __init__(
        self,
        input_projection: nn.Module,
        blocks: list[nn.Module],
        head: nn.Module,
        *,
        final_norm: nn.Module | None = None,
    ):
        super().__init__()
        self.input_projection = input_projection
        self.blocks = nn.ModuleList(blocks)
        self.final_norm = final_norm
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        h = self.input_projection(x)
        for block in self.blocks:
            h = block(h)
        if self.final_norm is not None:
            h = self.final_norm(h)
        return self.head(h)


def build_block(scales: BranchScales, width: int, norm: str = "layer", *, activation: str = "relu") -> nn.Module:
    """One block of a deep MLP with the parts its scales ask for; values are left to an initialisation plan.

    A path around the layer (``layer_skip_scale``) is the business of :class:`kilolayer.nn.BridgedLayer`, which
    holds several of these blocks.

    Raises:
        ValueError: an unknown norm or activation.

    Examples:
        >>> import torch
        >>> from kilolayer.schemes import Depth, get_scheme
        >>> scales = get_scheme("deepnorm").at(Depth(encoder_layers=24), 0)
        >>> build_block(scales, 8)(torch.randn(2, 8)).shape
        torch.Size([2, 8])
    """
    function = get_elementwise(activation)
    slots = {slot: build_norm(norm, width) for slot in scales.norm_slots}
    if not scales.has_skip:
        return ChainBlock(
            build_linear(width, width),
            slots.get("post"),
            activation=None if activation == "relu" else function,
        )
    inner_norm = slots.pop("inner", None)
    if "pre" in slots and scales.norm_output_scale != 1.0:
        slots["pre"] = ScaledNorm(slots["pre"], scales.norm_output_scale)
    return Residual(
        FeedForward(width, width, activation=function, inner_norm=inner_norm),
        **{f"{slot}_norm": module for slot, module in slots.items()},
        skip_scale=_trained(width) if scales.skip_learned else scales.skip_scale,
        branch_scale=_trained(width if scales.learned_per == "channel" else 1)
        if scales.learned
        else scales.branch_scale,
    )


def _trained(size: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(size))


def build_deep_mlp(
    *,
    in_features: int,
    num_classes: int,
    width: int,
    num_blocks: int,
    scheme: str | Scheme,
    norm: str = "layer",
    chain_init: str = "kaiming",
    generator: torch.Generator | None = None,
) -> DeepMLP:
    """Build and initialise a deep MLP with one branch per block.

    Args:
        in_features, num_classes: sizes of input and output.
        width: size of the hidden state, the same in every block.
        num_blocks: depth; a depth-dependent scheme derives its scales from it.
        scheme: a scheme or its name.
        norm: ``"layer"``, ``"rms"`` or ``"batch"``, where the scheme places norms.
        chain_init: ``"kaiming"`` or ``"lecun"``, for blocks without skip.
        generator: source of the initial weights; the same generator state gives the same weights.

    Raises:
        ValueError: a size below 1, an unknown scheme, norm or init, or a scheme that wants a profiling pass first.

    Examples:
        >>> model = build_deep_mlp(in_features=64, num_classes=10, width=32, num_blocks=16, scheme="deepnorm")
        >>> model.blocks[0].skip_scale
        2.0
    """
    sizes = {"in_features": in_features, "num_classes": num_classes, "width": width, "num_blocks": num_blocks}
    for name, value in sizes.items():
        if value < 1:
            raise ValueError(f"{name} must be >= 1, got {value}")
    scheme = get_scheme(scheme) if isinstance(scheme, str) else scheme
    depth = Depth(encoder_layers=num_blocks, encoder_branches_per_layer=1)
    model = DeepMLP(
        build_linear(in_features, width),
        [build_block(scheme.at(depth, index), width, norm) for index in range(num_blocks)],
        build_linear(width, num_classes),
        final_norm=build_norm(norm, width) if scheme.final_norm else None,
    )
    apply_init(model, plan_deep_mlp(model, scheme, chain_init=chain_init), generator=generator)
    return model
