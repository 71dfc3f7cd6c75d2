"""Which scheme of the registry has this wiring, and whether DeepNorm's skip scale fits the depth."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kilolayer.schemes import RULE_NAMES, Depth, Stack, get_scheme
from kilolayer.structure.structure import Branch, DepthFit

AGREEMENT = 1e-3
"""Relative; the published skip scales state four digits, and float32 keeps seven."""


def match_schemes(branches: Sequence[Branch], *, num_matrices: int, has_norms: bool) -> tuple[str, ...]:
    """The names of the schemes with this wiring, the plainest first.

    Schemes that differ in their initial values only cannot be told apart by their wiring.

    Args:
        branches: the residual sums of the model.
        num_matrices: learned matrices one behind the other, for a model without residual sums.
        has_norms: whether such a model has norms.
    """
    if not branches:
        return () if num_matrices < 2 else ("norm-only",) if has_norms else ("plain",)
    main = [branch for branch in branches if branch.kind != "long"]
    if len(main) < len(branches):
        return ("b2t",) if _is_bridged(branches) else ()
    placements = {branch.norm_placement for branch in main}
    if placements == {"post", "pre"} and _is_mixed_by_depth(main):
        return ("mix-ln",) if _is_plain(main) else ()
    if len(placements) > 1:
        return ()
    return _match_uniform(main, placements.pop())


def _is_plain(branches: Sequence[Branch]) -> bool:
    return all(branch.skip_scale == 1 and branch.branch_scale == 1 for branch in branches)


def _match_uniform(branches: Sequence[Branch], placement: str) -> tuple[str, ...]:
    skips = {branch.skip_scale for branch in branches}
    scales = {branch.branch_scale for branch in branches}
    if scales == {"learned"} and skips == {1.0}:
        return _match_gates(branches, placement)
    if scales != {1.0}:
        return ()
    if skips == {1.0}:
        if placement == "pre" and _is_scaled_by_layer(branches):
            return ("layernorm-scaling",)
        return {
            "none": ("residual", "residual-scaled", "t-fixup"),
            "post": ("post-ln",),
            "pre": ("pre-ln", "pre-ln-scaled"),
            "pre+end": ("sandwich-ln",),
            "end": ("end-ln",),
            "pre+inner": ("sub-ln",),
        }.get(placement, ())
    if skips == {"learned"}:
        return ("admin",) if placement == "post" else ()
    return {"post": ("deepnorm",), "pre+post": ("keel",)}.get(placement, ())


def _match_gates(branches: Sequence[Branch], placement: str) -> tuple[str, ...]:
    per_channel = any(branch.branch_entries > 1 for branch in branches)
    if placement == "pre":
        return ("layerscale",) if per_channel else ()
    if placement != "none" or per_channel:
        return ()
    owners = [branch.branch_parameters for branch in branches]
    if len(set(owners)) < len(owners):
        return ("rezero",)
    layers = [layer_of(branch) for branch in branches]
    names = ("rezero", "skipinit", "fixup")
    return names if len(set(layers)) == len(layers) else names[1:]


def _is_scaled_by_layer(branches: Sequence[Branch]) -> bool:
    """1/sqrt(l) behind the norms of layer l; the first layer's factor of 1 shows nowhere."""
    scales = [branch.norm_scale for branch in branches]
    layers = list(dict.fromkeys(layer_of(branch) for branch in branches))
    wanted = [(layers.index(layer_of(branch)) + 1) ** -0.5 for branch in branches]
    return len(layers) > 1 and all(
        math.isclose(scale, one, rel_tol=AGREEMENT) for scale, one in zip(scales, wanted, strict=True)
    )


def _is_bridged(branches: Sequence[Branch]) -> bool:
    """Every layer ends with its own input added once more to its last sum."""
    if not _is_plain(branches) or any(branch.norm_placement != "post" for branch in branches):
        return False
    layers: dict[tuple[str, int], list[str]] = {}
    for branch in branches:
        layers.setdefault(layer_of(branch), []).append(branch.kind)
    return all(len(kinds) > 2 and kinds.count("long") == 1 and kinds[-1] == "long" for kinds in layers.values())


def _is_mixed_by_depth(branches: Sequence[Branch]) -> bool:
    placements = [branch.norm_placement for branch in branches]
    return placements == sorted(placements, key=lambda placement: placement != "post")


def layer_of(branch: Branch) -> tuple[str, int]:
    """The layer a branch belongs to: its path up to the first number, and the call, should the module run again."""
    parts = branch.path.split(".")
    length = next((position for position, part in enumerate(parts, start=1) if part.isdigit()), len(parts))
    return ".".join(parts[:length]), branch.call


def _count_layers(chain: Sequence[Branch]) -> int:
    """Layers of a chain; where every branch has a number of its own, each branch without attention ends one."""
    layers = len({layer_of(branch) for branch in chain})
    without_attention = sum(branch.attention is None for branch in chain)
    return without_attention if layers == len(chain) and 0 < without_attention < len(chain) else layers


def fit_depths(branches: Sequence[Branch], chains: Sequence[Sequence[int]]) -> tuple[DepthFit, ...]:
    """For every chain with one constant skip scale and a norm behind its sums: is it the scale of its depth?"""
    depth, stacks = _depth(branches, chains)
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


def _depth(branches: Sequence[Branch], chains: Sequence[Sequence[int]]) -> tuple[Depth | None, tuple[Stack, ...]]:
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
