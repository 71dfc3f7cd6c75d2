"""How deep a chain is, and whether DeepNorm's skip scale is the one of that depth."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kilolayer.schemes import RULE_NAMES, Depth, Stack, get_scheme
from kilolayer.structure.structure import Branch, DepthFit

AGREEMENT = 1e-3
"""Relative; the published skip scales state four digits, and float32 keeps seven."""


def layer_of(branch: Branch) -> tuple[str, int]:
    """The layer a branch belongs to, and the call, should its module run again.

    That is the path up to the first number, of the module that does the sum or else of the branch's.
    """
    for path in (branch.path, branch.branch_path or ""):
        parts = path.split(".")
        for length, part in enumerate(parts, start=1):
            if part.isdigit():
                return ".".join(parts[:length]), branch.call
    return branch.path, branch.call


def _count_layers(chain: Sequence[Branch]) -> int:
    """Layers of a chain; where every branch has a number of its own, each branch without attention ends one."""
    layers = len({layer_of(branch) for branch in chain})
    without_attention = sum(branch.attention is None for branch in chain)
    return without_attention if layers == len(chain) and 0 < without_attention < len(chain) else layers


def fit_depths(branches: Sequence[Branch], chains: Sequence[Sequence[int]]) -> tuple[DepthFit, ...]:
    """For every chain with one constant skip scale and a norm behind its sums: is it the scale of its depth?"""
    depth, stacks = depth_of_chains(branches, chains)
    fits = []
    for number, stack in enumerate(stacks):
        chain = [branches[index] for index in chains[number]]
        scales = {branch.skip_scale for branch in chain}
        (scale, *others) = scales
        if others or scale in (1.0, "learned") or depth is None or {b.norm_placement for b in chain} != {"post"}:
            continue
        assert isinstance(scale, float)
        expected = {rule: skip for rule in RULE_NAMES if (skip := _expected(rule, depth, stack)) is not None}
        rules = tuple(rule for rule, skip in expected.items() if math.isclose(skip, scale, rel_tol=AGREEMENT))
        fits.append(
            DepthFit(number, depth.num_layers(stack), len(chain), scale, expected, rules, _fitting_branches(scale))
        )
    return tuple(fits)


def depth_of_chains(
    branches: Sequence[Branch], chains: Sequence[Sequence[int]]
) -> tuple[Depth | None, tuple[Stack, ...]]:
    """The depth of a model with one stack or with two of which the second reads the first."""
    counts = []
    for chain in chains:
        layers = _count_layers([branches[index] for index in chain])
        counts.append((layers, len(chain) // layers) if len(chain) % layers == 0 else (len(chain), 1))
    if len(counts) == 1:
        return Depth(encoder_layers=counts[0][0], encoder_branches_per_layer=counts[0][1]), ("encoder",)
    if len(counts) == 2:
        (encoder, per_encoder), (decoder, per_decoder) = counts
        return Depth(encoder, decoder, per_encoder, per_decoder), ("encoder", "decoder")
    return None, ()


def _expected(rule: str, depth: Depth, stack: Stack) -> float | None:
    try:
        return get_scheme("deepnorm", rule=rule).at(depth, 0, stack).skip_scale
    except ValueError:  # the rule has no formula for this many branches per layer
        return None


def _fitting_branches(scale: float) -> int | None:
    """The number of branches of a single stack with this skip scale under the default rule."""
    num_branches = round(scale**4)
    return num_branches if num_branches > 1 and math.isclose(num_branches**0.25, scale, rel_tol=1e-4) else None
