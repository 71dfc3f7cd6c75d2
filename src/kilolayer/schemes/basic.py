"""Schemes whose scales are constants or one power of the layer count: no skip, plain skips, post-LN, pre-LN."""

from __future__ import annotations

from kilolayer.schemes.depth import Depth, Stack
from kilolayer.schemes.scales import BranchScales
from kilolayer.schemes.scheme import Scales, Scheme, constant

BASE_INIT = "every matrix at its base initialization"
LAST_BY_ROOT_2L = (
    "last matrix of each branch (`attention_out`, `feedforward_out`) times 1/sqrt(2L), everything else at base"
)


def _one_over_root_two_l(norm_placement: str) -> Scales:
    """The last matrix of each branch times 1/sqrt(2L), L = layers, whatever the branches per layer."""

    def at(depth: Depth, stack: Stack, branch_index: int) -> BranchScales:
        return BranchScales(norm_placement=norm_placement, last_init_gain=(2 * depth.num_layers(stack)) ** -0.5)

    return at


PLAIN = Scheme(
    name="plain",
    formula="x' = f(x)",
    counts="nothing",
    reference="Glorot and Bengio 2010 (AISTATS), section 4.2; He et al. 2015, arXiv:1502.01852, eq. 10",
    scales=constant(BranchScales(has_skip=False)),
    init=BASE_INIT,
    limits="Forward and backward rates multiply: 1 % off per layer is a factor 2 after 70 layers. Even at the right "
    "gain, inputs grow alike and gradients scatter with depth.",
    when="Shallow networks, and as the baseline that shows what skips and norms do.",
)
NORM_ONLY = Scheme(
    name="norm-only",
    formula="x' = phi(LN(W x))",
    counts="nothing",
    reference="Ba et al. 2016, arXiv:1607.06450, eq. 3",
    scales=constant(BranchScales(norm_placement="post", has_skip=False)),
    init=BASE_INIT,
    limits="The norm holds the forward signal, not the backward product of Jacobians; with BatchNorm and ReLU "
    "gradients grow 1.21 times per layer.",
    when="To see what a norm alone repairs.",
)
RESIDUAL = Scheme(
    name="residual",
    formula="x' = x + f(x)",
    counts="nothing",
    reference="He et al. 2015, arXiv:1512.03385, eq. 1",
    scales=constant(BranchScales()),
    init=BASE_INIT,
    limits="The stream's variance doubles per branch of gain 1: 2^64 after 64 branches. Needs a norm or a branch "
    "scale beyond a few layers.",
    when="Networks of a few blocks, or as a baseline.",
)
RESIDUAL_SCALED = Scheme(
    name="residual-scaled",
    formula="x' = x + f(x)",
    counts="layers",
    reference="Radford et al. 2019 (GPT-2), section 2.3, without the norm",
    scales=_one_over_root_two_l("none"),
    init=LAST_BY_ROOT_2L,
    limits="Right at step 0 only: the branch is homogeneous in its input, so the first large updates restore the "
    "exponential growth. Small learning rates only.",
    when="To tell an initialization problem from a missing norm.",
    uses_depth="init",
)
POST_LN = Scheme(
    name="post-ln",
    formula="x' = LN(x + f(x))",
    counts="nothing",
    reference="Vaswani et al. 2017, arXiv:1706.03762, section 3.1",
    scales=constant(BranchScales(norm_placement="post")),
    init=BASE_INIT,
    limits="Each norm divides the gradient by the RMS of the sum before it, about sqrt(2) at initialization: "
    "gradients at the bottom vanish with depth. Warm-up buys a few tens of layers, not hundreds.",
    when="Up to about 12 layers, or to load an existing post-LN checkpoint.",
)
PRE_LN = Scheme(
    name="pre-ln",
    formula="x' = x + f(LN(x))",
    counts="nothing",
    reference="Xiong et al. 2020, arXiv:2002.04745, table 1",
    scales=constant(BranchScales(norm_placement="pre")),
    init=BASE_INIT,
    limits="The stream's variance grows by a constant per branch, so late branches change it less and less: depth "
    "is under-used. Needs the final norm.",
    when="The safe default: it tolerates a wide range of learning rates.",
    final_norm=True,
)
PRE_LN_SCALED = Scheme(
    name="pre-ln-scaled",
    formula="x' = x + f(LN(x))",
    counts="layers",
    reference="Radford et al. 2019 (GPT-2), section 2.3",
    scales=_one_over_root_two_l("pre"),
    init=LAST_BY_ROOT_2L,
    limits="L counts layers as GPT-2 does, so with two branches per layer the branches add 1 to the variance in "
    "all, with one branch 1/2. An initial condition only: training is free to leave it.",
    when="Pre-LN language models; what most published ones use.",
    final_norm=True,
    uses_depth="init",
)
