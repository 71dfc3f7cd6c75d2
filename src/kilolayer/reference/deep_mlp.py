"""The deep MLP of every scheme in NumPy: the same layout and parameter names as its PyTorch twin."""

from __future__ import annotations

import numpy as np

from kilolayer.reference.blocks import ChainBlock, FeedForward, Residual
from kilolayer.reference.layer import Array, Layer, check_count
from kilolayer.reference.layers import Linear, Sequential
from kilolayer.reference.norms import NORMS
from kilolayer.schemes import BranchScales, Depth, Scheme, get_scheme

Block = ChainBlock | Residual


class DeepMLP(Sequential):
    """``head(final_norm(blocks(input_projection(x))))``, the final norm optional.

    After a forward, ``stream`` holds one array per block, the signal along the depth: the pre-activation of a
    block without skip, the output of a residual one. Signals that are not finite pass in silence:
    divergence is a result here.

    Shape:
        - input: ``(batch, in_features)``
        - output: ``(batch, num_classes)``
        - ``stream``: ``num_blocks`` arrays ``(batch, width)``
    """

    def __init__(
        self, input_projection: Linear, *, blocks: list[Block], final_norm: Layer | None, head: Linear
    ) -> None:
        super().__init__(input_projection=input_projection, blocks=Sequential(*blocks))
        if final_norm is not None:
            self.children["final_norm"] = final_norm
        self.children["head"] = head
        self.blocks = tuple(blocks)
        self.stream: list[Array] = []

    @np.errstate(over="ignore", invalid="ignore")
    def forward(self, x: Array) -> Array:
        y = super().forward(x)
        self.stream = [block.readout for block in self.blocks if block.readout is not None]
        return y

    @np.errstate(over="ignore", invalid="ignore")
    def backward(self, grad_out: Array) -> Array:
        return super().backward(grad_out)


def build_deep_mlp(
    *,
    in_features: int,
    num_classes: int,
    width: int,
    num_blocks: int,
    scheme: str | Scheme,
    norm: str = "layer",
) -> DeepMLP:
    """A deep MLP wired by a scheme, one residual branch per block.

    Weights and biases are zero and norms the identity until ``load_parameters``: how to initialise is not
    the reference's business. Biases are everywhere; there is no activation after the input projection.

    Args:
        in_features: length of an input.
        num_classes: number of logits.
        width: features along the stream.
        num_blocks: blocks, and where the scheme has skips, branches.
        scheme: a scheme or its name.
        norm: ``"layer"``, ``"rms"`` or ``"batch"``: which norm fills the slots the scheme asks for.

    Raises:
        ValueError: a size below 1, an unknown scheme or norm, or a scheme this block cannot express.

    Examples:
        >>> sizes = {"in_features": 4, "num_classes": 3, "width": 8, "num_blocks": 2}
        >>> model = build_deep_mlp(**sizes, scheme="pre-ln", norm="rms")
        >>> [name for name, _ in model.named_parameters()][2:5]
        ['blocks.0.pre_norm.weight', 'blocks.0.branch.linear1.weight', 'blocks.0.branch.linear1.bias']
        >>> model.forward(np.zeros((5, 4))).shape, len(model.stream)
        ((5, 3), 2)
    """
    sizes = {"in_features": in_features, "num_classes": num_classes, "width": width, "num_blocks": num_blocks}
    for name, value in sizes.items():
        check_count(name, value)
    scheme = get_scheme(scheme) if isinstance(scheme, str) else scheme
    if norm not in NORMS:
        raise ValueError(f"unknown norm {norm!r}; use one of {', '.join(NORMS)}")
    depth = Depth(encoder_layers=num_blocks, encoder_branches_per_layer=1)
    return DeepMLP(
        Linear(in_features, width),
        blocks=[_build_block(scheme.at(depth, index), width, norm) for index in range(num_blocks)],
        final_norm=NORMS[norm](width) if scheme.final_norm else None,
        head=Linear(width, num_classes),
    )


def _build_block(scales: BranchScales, width: int, norm: str) -> Block:
    """The block one position of a scheme asks for."""
    _check_expressible(scales)
    if not scales.has_skip:
        return ChainBlock(width, norm=NORMS[norm](width) if scales.norm_slots else None)
    return Residual(
        FeedForward(width),
        **{f"{slot}_norm": NORMS[norm](width) for slot in scales.norm_slots},
        skip_scale=scales.skip_scale,
        branch_scale=scales.branch_scale,
    )


def _check_expressible(scales: BranchScales) -> None:
    """Refuse what the blocks have no part for, rather than leave it out."""
    for part in scales.special_parts:
        raise ValueError(f"the reference's blocks have no part for {part}; choose another scheme")
