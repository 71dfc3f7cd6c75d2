"""Schemes with a trained factor on each branch: ReZero, SkipInit, LayerScale."""

from __future__ import annotations

from kilolayer.schemes.basic import BASE_INIT
from kilolayer.schemes.depth import Depth, Stack
from kilolayer.schemes.scales import BranchScales
from kilolayer.schemes.scheme import Scheme, constant

REZERO = Scheme(
    name="rezero",
    formula="x' = x + lambda f(x), lambda = 0 at first, trained, one per layer",
    counts="nothing",
    reference="Bachlechner et al. 2020, arXiv:2003.04887, table 1; one per layer as in the authors' code",
    scales=constant(BranchScales(branch_scale=0.0, learned=True, learned_per="layer")),
    init=BASE_INIT,
    limits="At step 0 the branches get no gradient, only the gates do: a frozen gate is a dead layer. Without norms "
    "nothing bounds the stream later; the gates want their own learning rate.",
    when="Deep networks without norms that need a quick start.",
)
SKIPINIT = Scheme(
    name="skipinit",
    formula="x' = x + lambda f(x), lambda = 0 at first, trained, one per branch",
    counts="nothing",
    reference="De and Smith 2020, arXiv:2002.10444, SkipInit",
    scales=constant(BranchScales(branch_scale=0.0, learned=True, learned_per="branch")),
    init=BASE_INIT + " (He for a matrix before a ReLU)",
    limits="As ReZero. Proposed for convolutional residual networks in place of BatchNorm; it replaces the norm's "
    "effect at initialization, not its regularization.",
    when="Residual networks without BatchNorm.",
)


def layerscale_epsilon(num_layers: int) -> float:
    """The initial factor of LayerScale: 0.1 to 18 layers, 1e-5 to 24, 1e-6 beyond."""
    if num_layers <= 18:
        return 0.1
    return 1e-5 if num_layers <= 24 else 1e-6


def layerscale(depth: Depth, stack: Stack, branch_index: int) -> BranchScales:
    """A trained factor per channel behind each pre-norm branch."""
    return BranchScales(
        norm_placement="pre",
        branch_scale=layerscale_epsilon(depth.num_layers(stack)),
        learned=True,
        learned_per="channel",
    )


LAYERSCALE = Scheme(
    name="layerscale",
    formula="x' = x + diag(lambda) f(LN(x)), lambda = 0.1 to 18 layers, 1e-5 to 24, 1e-6 beyond; trained, per channel",
    counts="layers",
    reference="Touvron et al. 2021 (CaiT), arXiv:2103.17239, section 2, LayerScale",
    scales=layerscale,
    init=BASE_INIT,
    limits="Steps at 18 and 24 layers were found by search to 48 layers; beyond, nothing is known. A branch's "
    "gradient starts as small as its factor, so it learns late under SGD; Adam hides that.",
    when="Vision Transformers, and pre-LN models that should start near the identity.",
    final_norm=True,
    uses_depth="init",
)
