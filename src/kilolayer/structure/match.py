"""Which scheme of the registry has this wiring."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kilolayer.structure.depths import AGREEMENT, layer_of
from kilolayer.structure.structure import Branch


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
