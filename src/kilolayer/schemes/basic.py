"""Schemes whose scales are constants or a power of one count: no skip, plain skips, post-LN, pre-LN."""

from __future__ import annotations

from kilolayer.schemes.scheme import BranchScales, Depth, Scheme, Stack

HE = "He et al. 2015, arXiv:1512.03385, eq. 1"


def _constant(scales: BranchScales):  # type: ignore[no-untyped-def]
    def at(depth: Depth, stack: Stack, branch_index: int) -> BranchScales:
        return scales

    return at


def _one_over_root_two_l(norm_placement: str):  # type: ignore[no-untyped-def]
    """The last matrix of each branch times 1/sqrt(2L), L = layers, whatever the branches per layer."""

    def at(depth: Depth, stack: Stack, branch_index: int) -> BranchScales:
        return BranchScales(
            norm_placement=norm_placement, last_init_gain=(2 * depth.num_layers(stack)) ** -0.5
        )

    return at


PLAIN = Scheme("plain", "x' = f(x)", "nothing", "no skip, no norm", _constant(BranchScales(has_skip=False)))
NORM_ONLY = Scheme(
    "norm-only", "x' = f(LN(W x))", "nothing", "Ba et al. 2016, arXiv:1607.06450, eq. 4",
    _constant(BranchScales(norm_placement="post", has_skip=False)),
)
RESIDUAL = Scheme("residual", "x' = x + f(x)", "nothing", HE, _constant(BranchScales()))
RESIDUAL_SCALED = Scheme(
    "residual-scaled", "x' = x + f(x), last matrix of f times 1/sqrt(2L) at init", "layers",
    "Radford et al. 2019 (GPT-2), section 2.3", _one_over_root_two_l("none"),
)
POST_LN = Scheme(
    "post-ln", "x' = LN(x + f(x))", "nothing", "Vaswani et al. 2017, arXiv:1706.03762, section 3.1",
    _constant(BranchScales(norm_placement="post")),
)
PRE_LN = Scheme(
    "pre-ln", "x' = x + f(LN(x)), final norm", "nothing", "Xiong et al. 2020, arXiv:2002.04745, table 1",
    _constant(BranchScales(norm_placement="pre")), final_norm=True,
)
PRE_LN_SCALED = Scheme(
    "pre-ln-scaled", "x' = x + f(LN(x)), last matrix of f times 1/sqrt(2L) at init, final norm", "layers",
    "Radford et al. 2019 (GPT-2), section 2.3", _one_over_root_two_l("pre"), final_norm=True,
)
