"""The schemes of ``kilolayer lab update``: those of the registry, and DeepNorm taken apart."""

from __future__ import annotations

import re
from dataclasses import replace

from kilolayer.lab.depth_run import split_scheme
from kilolayer.schemes import BranchScales, Depth, Scheme, Stack, get_scheme
from kilolayer.schemes.deepnorm import DEEPNORM

BETA_ONLY = "beta-only"
POWER = re.compile(r"power-(\d+(?:\.\d+)?)")
LARGEST_POWER = 2.0
"""Beyond it ``(4 B)^-p`` leaves nothing of a branch at any depth worth measuring."""


def get_update_scheme(text: str) -> Scheme:
    """A scheme by its name, with a rule after a colon.

    Beside the registry's schemes and DeepNorm's rules there are ``post-ln:beta-only``, the skip of post-LN with the
    initial values of DeepNorm (alpha = 1, beta = (4B)^(-1/4)), and ``deepnorm:power-P``, DeepNorm with another
    exponent, alpha = B^P and beta = (4B)^-P for B branches: P = 0 is post-LN, P = 0.25 DeepNorm.

    Raises:
        ValueError: an unknown scheme or rule, one without skips, or an exponent outside [0, 2].

    Examples:
        >>> scheme = get_update_scheme("deepnorm:power-0.5")
        >>> scheme.at(Depth(decoder_layers=8), 0, "decoder").skip_scale
        4.0
    """
    name, rule = split_scheme(text)
    if name == "post-ln" and rule == BETA_ONLY:
        return _beta_only()
    if name == "deepnorm" and rule is not None and rule.startswith("power"):
        return _power(rule)
    scheme = get_scheme(name, rule)
    if not scheme.needs_profile and not scheme.at(Depth(encoder_layers=1), 0).has_skip:
        raise ValueError(f"scheme {name!r} has no skips; the model update compares residual schemes, such as 'pre-ln'")
    return scheme


def _beta_only() -> Scheme:
    def scales(depth: Depth, stack: Stack, branch_index: int) -> BranchScales:
        return replace(DEEPNORM.at(depth, branch_index, stack), skip_scale=1.0)

    return replace(
        DEEPNORM,
        name="post-ln",
        rule=BETA_ONLY,
        scales=scales,
        formula="x' = LN(x + f(x)), beta = (4B)^(-1/4)",
        limits="Half of DeepNorm: right at step 0, without the skip scale that keeps it so.",
        when="To see which half of DeepNorm does what.",
        uses_depth="init",
    )


def _power(rule: str) -> Scheme:
    found = POWER.fullmatch(rule)
    if found is None or float(found[1]) > LARGEST_POWER:
        raise ValueError(
            f"rule {rule!r} of 'deepnorm' is no exponent; write power-P with P from 0 to {LARGEST_POWER:g}, "
            "such as power-0.5"
        )
    power = float(found[1])

    def scales(depth: Depth, stack: Stack, branch_index: int) -> BranchScales:
        num_branches = depth.num_branches(stack)
        return BranchScales(
            norm_placement="post", skip_scale=num_branches**power, init_gain=(4 * num_branches) ** -power
        )

    return replace(
        DEEPNORM,
        rule=rule,
        scales=scales,
        formula=f"x' = LN(alpha x + f(x)), alpha = B^{power:g}, beta = (4B)^-{power:g}",
        limits="The update sum is B^(1 - 4p) / 16^p: constant in depth at p = 1/4 only.",
        when="To see why the exponent is 1/4.",
    )
