"""How far theory lets one step move the output of a stack, as a sum over its branches."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kilolayer.schemes import BranchScales, Depth, Scheme, Stack, log_stream_variances


@dataclass(frozen=True)
class UpdateSums:
    """Sums over branches that one step's update of the output is proportional to, by kind of step.

    Attributes:
        sgd: for a step along the gradient, whose size is itself that of the branch's path.
        adamw: for a step whose size does not depend on the gradient's.
    """

    sgd: float
    adamw: float

    def of(self, optimizer: str) -> float:
        """The sum for an optimizer's steps."""
        return self.sgd if optimizer == "sgd" else self.adamw


def predict_update_sums(scheme: Scheme, depth: Depth, stack: Stack) -> UpdateSums | None:
    """The update sums of a stack, ``None`` where theory has none.

    A branch whose first and last matrix have gains v and w moves the output of a stack of post-norms by at most
    ``sqrt(v^2 + w^2) / s |dtheta|``, where s is the skip scale (theorem 4.2). Under pre-norms the stream grows, and
    with it what a later branch passes on of an earlier one: seen from the top, s is the RMS of the stream behind the
    branch. With ``r_b^2 = (v^2 + w^2) / (2 s_b^2)``

        ``sgd = sum_b r_b^2``, since the gradient brings the same factor once more: ``|dtheta_b| ~ lr r_b``;
        ``adamw = sum_b r_b``, since ``|dtheta_b| ~ lr`` whatever the gradient.

    For B branches that is, of order: post-LN B and B, DeepNorm 1/2 and ``sqrt(B / 2)``, pre-LN ``ln B`` and
    ``2 sqrt(B)``. Only the branches' matrices count: biases and the norms' own gains are not part of the theorem.

    Returns:
        ``None`` for norms in other places, for trained scales and for a scheme that needs a profile.

    Examples:
        >>> from kilolayer.schemes import get_scheme
        >>> sums = predict_update_sums(get_scheme("deepnorm"), Depth(decoder_layers=50), "decoder")
        >>> round(sums.sgd, 9), round(sums.adamw, 3)
        (0.5, 7.071)

    Reference: Wang et al. 2022, arXiv:2203.00555, theorem 4.2, for SGD and post-norms; Wang et al. 2022,
    arXiv:2210.06423, section 3, on pre-norms (O(log L)); the sums for AdamW follow from the same steps.
    """
    if scheme.needs_profile:
        return None
    branches = [scheme.at(depth, index, stack) for index in range(depth.num_branches(stack))]
    placement = branches[0].norm_placement
    if placement not in ("post", "pre") or any(_is_special(one, placement) for one in branches):
        return None
    logs = log_stream_variances(scheme, depth, stack)
    squares = [
        _squared_path(one, math.exp(-log) if placement == "pre" else one.skip_scale**-2)
        for one, log in zip(branches, logs, strict=True)
    ]
    return UpdateSums(sgd=math.fsum(squares), adamw=math.fsum(map(math.sqrt, squares)))


def _squared_path(scales: BranchScales, over_variance: float) -> float:
    first = scales.norm_output_scale * scales.gain("feedforward_in")
    return scales.branch_scale**2 * (first**2 + scales.gain("feedforward_out") ** 2) / 2 * over_variance


def _is_special(scales: BranchScales, placement: str) -> bool:
    is_carried = placement == "post" or scales.skip_scale == 1.0
    learns = scales.learned or scales.skip_learned
    return scales.norm_placement != placement or learns or bool(scales.layer_skip_scale) or not is_carried
