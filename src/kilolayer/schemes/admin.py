"""Admin: post-LN whose skip scales come from a profiling pass."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kilolayer.schemes.basic import BASE_INIT
from kilolayer.schemes.depth import Depth, Stack
from kilolayer.schemes.scales import BranchScales
from kilolayer.schemes.scheme import Profile, Scales, Scheme


def admin_skip_scales(branch_variances: Sequence[float], *, input_variance: float = 1.0) -> tuple[float, ...]:
    """The skip scales (omega) of one stack from the output variances of its branches at initialization.

    omega_1 = 1, omega_i = sqrt(input_variance + sum_{j<i} Var f_j): the skip weighs as much as everything
    that went into it, so that branch i changes the stream by its share of the total.

    Args:
        branch_variances: variance of each branch's output, in order, measured with every skip scale at 1.
        input_variance: variance of the tensor that enters the stack.

    Raises:
        ValueError: a variance that is negative or not finite.

    Examples:
        >>> admin_skip_scales([1.0, 1.0, 2.0])
        (1.0, 1.4142135623730951, 1.7320508075688772)

    Reference: Liu et al. 2020, arXiv:2004.08249, Admin.
    """
    for variance in (input_variance, *branch_variances):
        if not (math.isfinite(variance) and variance >= 0):
            raise ValueError(f"variances must be finite and >= 0, got {variance}; profile the model at initialization")
    skip_scales = [1.0]
    total = input_variance
    for variance in branch_variances[:-1]:
        total += variance
        skip_scales.append(math.sqrt(total))
    return tuple(skip_scales)


def _from_profile(profile: Profile) -> Scales:
    skip_scales = {stack: admin_skip_scales(variances) for stack, variances in profile.items()}

    def at(depth: Depth, stack: Stack, branch_index: int) -> BranchScales:
        measured = len(skip_scales.get(stack, ()))
        if measured != depth.num_branches(stack):
            raise ValueError(
                f"the profile holds {measured} branches of the {stack}, the {stack} has {depth.num_branches(stack)}; "
                "profile the model at the depth it will train at"
            )
        return BranchScales(norm_placement="post", skip_scale=skip_scales[stack][branch_index], skip_learned=True)

    return at


def _without_profile(depth: Depth, stack: Stack, branch_index: int) -> BranchScales:
    raise AssertionError("Scheme.at refuses a scheme that needs a profile")


ADMIN = Scheme(
    name="admin",
    formula="x' = LN(omega x + f(x)), omega_i = sqrt(1 + sum_{j<i} Var f_j), omega_1 = 1; trained, per channel",
    counts="branches",
    reference="Liu et al. 2020, arXiv:2004.08249, Admin",
    scales=_without_profile,
    init=BASE_INIT + "; omega from the variances of the branch outputs in one forward pass with omega = 1",
    limits="Needs a forward pass over real data before training, and again whenever depth, width or initialization "
    "change. omega lives in the checkpoint.",
    when="Post-norm models of 12 to 72 layers where a profiling pass is no trouble.",
    varies_by_layer=True,
    from_profile=_from_profile,
)
