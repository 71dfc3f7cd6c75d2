"""The deep MLP of :func:`kilolayer.nn.build_deep_mlp` as theory sees it, for any scheme."""

from __future__ import annotations

import math

from kilolayer.schemes import BranchScales, Depth, Scheme, get_scheme
from kilolayer.theory.block import BlockSpec, HeadSpec

CHAIN_WEIGHT_VARIANCES = {"kaiming": 2.0, "lecun": 1.0}
"""fan_in * std^2 of the one matrix of a block without skip."""


def deep_mlp_specs(
    scheme: str | Scheme,
    num_blocks: int,
    *,
    width: int,
    norm: str = "layer",
    chain_init: str = "kaiming",
    num_classes: int = 10,
) -> tuple[tuple[BlockSpec, ...], HeadSpec]:
    """Blocks and head of a deep MLP with one branch per block.

    A residual branch is ``W2 relu(W1 x)`` with stds ``sqrt(2/n)`` and ``sqrt(1/n)`` times the scheme's gains; a
    block without skip is ``norm(W relu(x))``, read before the ReLU, with std ``sqrt(2/n)`` or, for
    ``chain_init="lecun"``, ``sqrt(1/n)``. The head has std ``sqrt(1/n)``.

    Raises:
        ValueError: an unknown scheme, ``chain_init`` or norm, a size below 1, or a scheme whose sums add the
            input of another layer.

    Examples:
        >>> blocks, head = deep_mlp_specs("deepnorm", 16, width=32)
        >>> blocks[0].skip_scale, len(blocks), head.norm_kind
        (2.0, 16, None)
    """
    if chain_init not in CHAIN_WEIGHT_VARIANCES:
        raise ValueError(f"chain_init {chain_init!r} is unknown; use one of {', '.join(CHAIN_WEIGHT_VARIANCES)}")
    scheme = get_scheme(scheme) if isinstance(scheme, str) else scheme
    depth = Depth(encoder_layers=num_blocks, encoder_branches_per_layer=1)
    scales = [scheme.at(depth, index) for index in range(num_blocks)]
    chain_std = math.sqrt(CHAIN_WEIGHT_VARIANCES[chain_init] / width)
    blocks = tuple(
        _residual_spec(one, width, norm)
        if one.has_skip
        else _chain_spec(one, width, norm=norm, std=chain_std, is_first=index == 0)
        for index, one in enumerate(scales)
    )
    head = HeadSpec(
        width,
        num_classes,
        scheme.head_gain * width**-0.5,
        norm_kind=norm if scheme.final_norm else None,
        input_activated=not scales[-1].has_skip,
    )
    return blocks, head


def _chain_spec(scales: BranchScales, width: int, *, norm: str, std: float, is_first: bool) -> BlockSpec:
    return BlockSpec(
        width,
        (std,),
        has_skip=False,
        norm_placement=scales.norm_placement,
        norm_kind=norm,
        input_activated=not is_first,
    )


def _residual_spec(scales: BranchScales, width: int, norm: str) -> BlockSpec:
    if scales.layer_skip_scale:
        raise ValueError("a scheme whose sums add the layer's own input has no place in a chain of single branches")
    stds = (
        math.sqrt(2 / width) * scales.gain("feedforward_in"),
        math.sqrt(1 / width) * scales.gain("feedforward_out"),
    )
    return BlockSpec(
        width,
        stds,
        norm_placement=scales.norm_placement,
        norm_kind=norm,
        skip_scale=scales.skip_scale,
        branch_scale=scales.branch_scale,
        norm_output_scale=scales.norm_output_scale,
    )
