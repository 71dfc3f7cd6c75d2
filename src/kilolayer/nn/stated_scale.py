"""A skip scale that a config states: checked against the depth it stands beside, or taken at its word."""

from __future__ import annotations

import dataclasses
import math

from kilolayer.schemes import BranchScales, Depth, Scheme, Stack

AGREEMENT = 2e-4
"""Relative; configs state four digits or more, and one layer in a thousand changes a fourth root by 2.5e-4."""

DEEPEST_GUESS = 2_000


def check_skip_scale(stated: float, scheme: Scheme, depth: Depth) -> None:
    """Refuse a skip scale that is not the scheme's at this depth.

    Raises:
        ValueError: naming the scheme's own scale and, where there is one, the depth the stated one fits; also
            for a network of two stacks, whose scales differ.

    Examples:
        >>> from kilolayer.schemes import get_scheme
        >>> check_skip_scale(2.2134, get_scheme("deepnorm"), Depth(decoder_layers=12))
    """
    stack = _only_stack(depth)
    own = scheme.at(depth, 0, stack).skip_scale
    if math.isclose(stated, own, rel_tol=AGREEMENT):
        return
    fits = fitting_depth(stated, scheme, stack)
    origin = f"; {stated:.6g} is the scale of {fits} layers" if fits else ""
    raise ValueError(
        f"skip_scale={stated:.6g} does not fit {depth.num_layers(stack)} layers of {scheme.name!r}, whose scale is "
        f"{own:.6g}{origin}. Leave it out to derive it from the depth, or say that it is meant with "
        "skip_scale_is_meant=True"
    )


def fitting_depth(stated: float, scheme: Scheme, stack: Stack) -> int | None:
    """The number of layers of a single stack at which the scheme has this skip scale."""
    for count in range(1, DEEPEST_GUESS + 1):
        depth = Depth(encoder_layers=count) if stack == "encoder" else Depth(decoder_layers=count)
        if math.isclose(stated, scheme.at(depth, 0, stack).skip_scale, rel_tol=1e-4):
            return count
    return None


def with_skip_scale(scheme: Scheme, skip_scale: float) -> Scheme:
    """The scheme with another skip scale in every branch, whatever the depth.

    Raises:
        ValueError: a scale that is not positive and finite.
    """
    if not (math.isfinite(skip_scale) and skip_scale > 0):
        raise ValueError(f"skip_scale must be positive and finite, got {skip_scale}")

    def scales(depth: Depth, stack: Stack, branch_index: int) -> BranchScales:
        return dataclasses.replace(scheme.scales(depth, stack, branch_index), skip_scale=skip_scale)

    return dataclasses.replace(scheme, scales=scales)


def _only_stack(depth: Depth) -> Stack:
    if depth.is_encoder_decoder:
        raise ValueError("skip_scale states one number, and encoder and decoder have scales of their own; leave it out")
    return depth.stacks[0]
