"""DeepNorm: x' = LN(alpha x + f(x)), the branch's matrices initialised with gain beta."""

from __future__ import annotations

from kilolayer.schemes.scheme import BranchScales, Depth, Scheme, Stack


def deepnet(depth: Depth, stack: Stack, branch_index: int) -> BranchScales:
    """alpha = B^(1/4), beta = (4B)^(-1/4) for B branches, except in the encoder of an encoder-decoder.

    There alpha = 0.81 (N^4 M)^(1/16) and beta = 0.87 (N^4 M)^(-1/16) for N encoder and M decoder layers.
    """
    if depth.is_encoder_decoder and stack == "encoder":
        both = (depth.encoder_layers**4 * depth.decoder_layers) ** (1 / 16)
        return BranchScales(norm_placement="post", skip_scale=0.81 * both, init_gain=0.87 / both)
    count = depth.num_branches(stack)
    return BranchScales(norm_placement="post", skip_scale=count**0.25, init_gain=(4 * count) ** -0.25)


DEEPNORM = Scheme(
    "deepnorm", "x' = LN(alpha x + f(x)), alpha = B^(1/4), beta = (4B)^(-1/4)", "branches",
    "Wang et al. 2022, arXiv:2203.00555, figure 2 and table 2", deepnet, rule="deepnet",
)
