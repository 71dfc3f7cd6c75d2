"""Schemes that differ in where norms stand: sandwich, end, sub-LN, KEEL, LayerNorm scaling, Mix-LN, B2T."""

from __future__ import annotations

import math

from kilolayer.schemes.basic import BASE_INIT
from kilolayer.schemes.depth import Depth, Stack
from kilolayer.schemes.scales import BranchScales
from kilolayer.schemes.scheme import Scheme, constant

MIX_LN_POST_SHARE = 0.25

SANDWICH_LN = Scheme(
    name="sandwich-ln",
    formula="x' = x + LN(f(LN(x)))",
    counts="nothing",
    reference="Ding et al. 2021 (CogView), arXiv:2105.13290, Sandwich LayerNorm",
    scales=constant(BranchScales(norm_placement="pre+end")),
    init=BASE_INIT,
    limits="Every branch adds variance 1 whatever its weights: no initial gain can quiet a branch, only the gain of "
    "its end norm. One more norm per branch.",
    when="Half precision, where a single branch output may overflow; Gemma 2 and GLM-4 use it.",
    final_norm=True,
)
END_LN = Scheme(
    name="end-ln",
    formula="x' = x + LN(f(x))",
    counts="nothing",
    reference="Liu et al. 2021 (Swin V2), arXiv:2111.09883, figure 1; OLMo 2, arXiv:2501.00656, reordered norm",
    scales=constant(BranchScales(norm_placement="end")),
    init=BASE_INIT,
    limits="The branch reads the raw stream, whose RMS grows as sqrt(1 + B): OLMo 2 adds a norm on query and key "
    "against growing attention logits.",
    when="Pre-LN models with spikes of the branch outputs.",
    final_norm=True,
)


def sub_ln(depth: Depth, stack: Stack, branch_index: int) -> BranchScales:
    """Gain sqrt(log 2L) for one stack of L layers.

    In an encoder-decoder sqrt(log(3M) log(2N) / 3) in the encoder, sqrt(log 3M) in the decoder, whose
    cross-attention keeps gain 1.
    """
    layers = depth.num_layers(stack)
    if not depth.is_encoder_decoder:
        gain = math.sqrt(math.log(2 * layers))
    elif stack == "encoder":
        gain = math.sqrt(math.log(3 * depth.decoder_layers) * math.log(2 * layers) / 3)
    else:
        gain = 1.0 if depth.is_cross_attention(stack, branch_index) else math.sqrt(math.log(3 * layers))
    return BranchScales(norm_placement="pre+inner", init_gain=gain)


SUB_LN = Scheme(
    name="sub-ln",
    formula="x' = x + W_last LN(phi(W_first LN(x)))",
    counts="layers",
    reference="Wang et al. 2022 (Magneto), arXiv:2210.06423, figure 2; cross-attention as in torchscale's decoder",
    scales=sub_ln,
    init="`value`, `attention_out`, `feedforward_in`, `feedforward_out` times gamma on Xavier normal, gamma = "
    "sqrt(log 2L) for one stack; in an encoder-decoder sqrt(log(3M) log(2N) / 3) in the encoder, sqrt(log 3M) in the "
    "decoder, cross-attention 1; `query` and `key` at base",
    limits="gamma exceeds 1 from two layers on: the branches start larger than pre-LN's, and the second norm pays "
    "for it. The inner norm hides the gain of the first matrix from the forward pass.",
    when="Pre-norm models across modalities, instead of tuning one placement per task.",
    final_norm=True,
    uses_depth="init",
)


def keel(depth: Depth, stack: Stack, branch_index: int) -> BranchScales:
    """alpha = B, the branches of the stack."""
    return BranchScales(norm_placement="pre+post", skip_scale=float(depth.num_branches(stack)))


KEEL = Scheme(
    name="keel",
    formula="x' = LN(alpha x + f(LN(x))), alpha = B",
    counts="branches",
    reference="Chen and Wei 2026, arXiv:2601.19895, the Keel block",
    scales=keel,
    init=BASE_INIT + "; the method asks for no initialization of its own",
    limits="At initialization each branch moves the normalized stream by 1/B: a thousand layers start as nearly the "
    "identity. Two norms per branch, and alpha belongs to the depth.",
    when="Deep decoders at large learning rates.",
    uses_depth="forward",
)


def layernorm_scaling(depth: Depth, stack: Stack, branch_index: int) -> BranchScales:
    """The pre-norm's output times 1/sqrt(l), l = 1 for the first layer; both branches of a layer alike."""
    layer_number = depth.layer_index(stack, branch_index) + 1
    return BranchScales(norm_placement="pre", norm_output_scale=layer_number**-0.5)


LAYERNORM_SCALING = Scheme(
    name="layernorm-scaling",
    formula="x' = x + f(LN(x) / sqrt(l)), l = 1, 2, ... the number of the layer",
    counts="layers",
    reference="Sun et al. 2025, arXiv:2502.05795, eq. 12",
    scales=layernorm_scaling,
    init=BASE_INIT + "; not to be combined with 1/sqrt(2L)",
    limits="The variance grows as log L instead of L, so late branches count for more than in pre-LN; the norm's "
    "trained gain can undo the factor. A layer moved to another place needs another factor.",
    when="Pre-LN models whose deep layers add little.",
    final_norm=True,
    varies_by_layer=True,
)


def mix_ln(depth: Depth, stack: Stack, branch_index: int) -> BranchScales:
    """Post-LN in the first floor(L/4) layers, pre-LN in the others."""
    num_post = math.floor(MIX_LN_POST_SHARE * depth.num_layers(stack))
    is_post = depth.layer_index(stack, branch_index) < num_post
    return BranchScales(norm_placement="post" if is_post else "pre")


MIX_LN = Scheme(
    name="mix-ln",
    formula="x' = LN(x + f(x)) in the first floor(L/4) layers, x' = x + f(LN(x)) in the others",
    counts="layers",
    reference="Li et al. 2024, arXiv:2412.13795, Mix-LN with a = 0.25",
    scales=mix_ln,
    init=BASE_INIT,
    limits="The post-LN part keeps its vanishing gradient: a quarter of 100 layers is too deep for it. The paper "
    "itself lowers the share for its largest model. Below four layers it is pre-LN.",
    when="Pre-LN language models of 12 to 32 layers.",
    final_norm=True,
    uses_depth="forward",
    varies_by_layer=True,
)


def b2t(depth: Depth, stack: Stack, branch_index: int) -> BranchScales:
    """Post-LN, and the layer's own input added once more in the sum of its last branch.

    The path leads around the norms inside a layer; a layer of one branch has none to lead around.
    """
    bridges = depth.branches_per_layer(stack) > 1 and depth.is_last_of_layer(stack, branch_index)
    gain = depth.num_layers(stack) ** -0.5
    return BranchScales(
        norm_placement="post",
        layer_skip_scale=1.0 if bridges else 0.0,
        init_gain=gain,
        role_gains=(("query", gain), ("key", gain), ("feedforward_gate", gain)),
    )


B2T = Scheme(
    name="b2t",
    formula="x' = LN(x + f(x)), last branch of a layer x' = LN(x + x_layer + f(x)), x_layer = its input",
    counts="layers",
    reference="Takase et al. 2022, arXiv:2206.00330, B2T connection; initialization from the authors' code",
    scales=b2t,
    init="every matrix of a layer, `query` and `key` included, times 1/sqrt(L)",
    limits="The last norm of each layer still divides the gradient: it vanishes more slowly than in post-LN, but "
    "it does. Needs layers of two branches or more, and a tensor kept across the layer.",
    when="Encoder-decoders of up to about 100 layers that should stay post-norm.",
    uses_depth="init",
)
