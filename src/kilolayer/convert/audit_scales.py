"""Skip scales against depth: which value stands there, and what it would be the value of."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

from torch import nn

from kilolayer.convert.branches import FoundBranch, Network
from kilolayer.convert.carriers import Scaled
from kilolayer.convert.own_layers import own_layers
from kilolayer.schemes import RULE_NAMES, BranchScales, Depth, Scheme, get_scheme

AGREEMENT = 1e-3
"""Relative; published skip scales state four digits."""

DEEPEST = 2_000
"""Layers up to which a scale's own depth is looked for."""

Result = tuple[Literal["ok", "fault", "not evaluated"], str, tuple[str, ...]]


def check_skip_scales(network: Network, scheme: Scheme) -> Result:
    """Every branch's skip scale against the scheme's at this depth; a factor 1/alpha on the branch is alpha."""
    wrong: dict[str, str] = {}
    wanted_texts: dict[str, None] = {}
    for branch in network.branches:
        wanted = scheme.at(network.depth, branch.branch_index, branch.stack)
        wanted_texts[f"{branch.stack} {wanted.skip_scale / wanted.branch_scale:.5g}"] = None
        problem = _problem(branch, wanted, scheme, network.depth)
        if problem is not None:
            wrong.setdefault(branch.path or "(model)", problem)
    if not wrong:
        return "ok", ", ".join(wanted_texts), ()
    return "fault", "; ".join(dict.fromkeys(wrong.values())), tuple(wrong)


def _problem(branch: FoundBranch, wanted: BranchScales, scheme: Scheme, depth: Depth) -> str | None:
    found = branch.effective_skip_scale
    if wanted.learned or wanted.skip_learned:
        return None if found is None else f"{scheme.name} trains a scale here, and there is none"
    if found is None:
        return "a trained scale stands where the scheme has a constant"
    target = wanted.skip_scale / wanted.branch_scale
    has_norm_behind = "post" in branch.norm_placement.split("+")
    if math.isclose(found, target, rel_tol=AGREEMENT) and (has_norm_behind or _same_factors(branch, wanted)):
        return None
    told = f"{branch.stack} skip scale {found:.5g}, {scheme.name} asks for {target:.5g} at this depth"
    hint = next(_hints(found, target, wanted, branch, depth), None)
    return told if hint is None else f"{told}: {hint}"


def _same_factors(branch: FoundBranch, wanted: BranchScales) -> bool:
    return branch.skip_scale == wanted.skip_scale and branch.branch_scale == wanted.branch_scale


def _hints(found: float, target: float, wanted: BranchScales, branch: FoundBranch, depth: Depth) -> Iterator[str]:
    """What else the scale could be, the likeliest first."""
    if math.isclose(found, 1 / target, rel_tol=AGREEMENT) and target != 1:
        yield "it multiplies the branch instead of the skip"
    if math.isclose(found, wanted.init_gain, rel_tol=AGREEMENT) and wanted.init_gain != 1:
        yield "that is the init gain, which belongs into the initial values"
    if math.isclose(found, 1.0, rel_tol=AGREEMENT):
        yield "there is no skip scale at all"
    for rule in RULE_NAMES:
        if math.isclose(found, _skip_scale(rule, depth, branch), rel_tol=AGREEMENT):
            yield f"that is rule {rule!r}"
    for layers in range(1, DEEPEST + 1):
        single = Depth(encoder_layers=layers, encoder_branches_per_layer=depth.branches_per_layer(branch.stack))
        if math.isclose(found, get_scheme("deepnorm").at(single, 0).skip_scale, rel_tol=1e-4):
            yield f"it fits {layers} layers of a single stack, so it was set for another depth"
            return


def _skip_scale(rule: str, depth: Depth, branch: FoundBranch) -> float:
    try:
        return get_scheme("deepnorm", rule=rule).at(depth, branch.branch_index, branch.stack).skip_scale
    except ValueError:  # no formula for this many branches per layer
        return math.nan


def check_stored_depth(model: nn.Module, network: Network) -> Result:
    """Whether something refuses the weights of another depth, or what is saved is the same function anyway."""
    if any(isinstance(module, Scaled) for module in model.modules()):
        return "ok", "saved weights are folded and compute the same without the scheme", ()
    if own_layers(model):
        has_guard = any(name.endswith("depth_guard.num_layers") for name, _ in model.named_buffers())
        told = "the depth of the skip scales is in the state dict"
        return ("ok", told, ()) if has_guard else ("fault", "no layer or stack keeps the depth of its scales", ())
    if all(branch.effective_skip_scale == 1.0 for branch in network.branches):
        return "not evaluated", "there is no skip scale whose depth could be stored", ()
    return (
        "fault",
        "the skip scale is a number in the code and not in the state dict: weights of another depth load without an "
        "error and compute something else",
        (network.branches[0].path or "(model)",),
    )
