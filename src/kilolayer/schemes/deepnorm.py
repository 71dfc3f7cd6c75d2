"""DeepNorm, x' = LN(alpha x + f(x)) with init gain beta: every published rule for alpha and beta, in one place.

Throughout, N is the number of encoder layers, M of decoder layers, and B of residual branches of a stack.
"""

from __future__ import annotations

from kilolayer.schemes.depth import Depth, Stack
from kilolayer.schemes.scales import BranchScales
from kilolayer.schemes.scheme import Scales, Scheme

ARTICLE_LAST_LAYER_GAIN = 0.1

_INIT = (
    "`value`, `attention_out`, `feedforward_in` and `feedforward_out` (self- and cross-attention alike) times beta "
    "on Xavier normal; `query`, `key`, `feedforward_gate`, embeddings and head at base; biases 0"
)


def _deepnorm(skip_scale: float, init_gain: float) -> BranchScales:
    return BranchScales(norm_placement="post", skip_scale=skip_scale, init_gain=init_gain)


def deepnet(depth: Depth, stack: Stack, branch_index: int) -> BranchScales:
    """alpha = B^(1/4), beta = (4B)^(-1/4) for B branches, except in the encoder of an encoder-decoder.

    There alpha = 0.81 (N^4 M)^(1/16) and beta = 0.87 (N^4 M)^(-1/16) for N encoder and M decoder layers,
    derived for two branches per encoder layer and three per decoder layer.

    Raises:
        ValueError: the encoder of an encoder-decoder with other numbers of branches per layer.
    """
    if not (depth.is_encoder_decoder and stack == "encoder"):
        num_branches = depth.num_branches(stack)
        return _deepnorm(num_branches**0.25, (4 * num_branches) ** -0.25)
    per_layer = (depth.branches_per_layer("encoder"), depth.branches_per_layer("decoder"))
    if per_layer != (2, 3):
        raise ValueError(
            "rule 'deepnet' has a formula for encoder-decoders with 2 branches per encoder layer and 3 per decoder "
            f"layer only, got {per_layer[0]} and {per_layer[1]}; rule 'per-stack' takes any"
        )
    both = (depth.encoder_layers**4 * depth.decoder_layers) ** (1 / 16)
    return _deepnorm(0.81 * both, 0.87 / both)


def _power(alpha: tuple[int, float], beta: tuple[int, float]) -> Scales:
    """alpha = (k L)^p and beta = (m L)^q for (k, p) and (m, q), L layers of the stack."""

    def at(depth: Depth, stack: Stack, branch_index: int) -> BranchScales:
        num_layers = depth.num_layers(stack)
        return _deepnorm((alpha[0] * num_layers) ** alpha[1], (beta[0] * num_layers) ** beta[1])

    return at


def article(depth: Depth, stack: Stack, branch_index: int) -> BranchScales:
    """alpha = (3L)^(1/2) in an encoder-decoder, (2L)^(1/2) alone; beta = (8L)^(-1/2), 0.1 in the last layer."""
    num_layers = depth.num_layers(stack)
    is_last_layer = depth.layer_index(stack, branch_index) == num_layers - 1
    return _deepnorm(
        ((3 if depth.is_encoder_decoder else 2) * num_layers) ** 0.5,
        ARTICLE_LAST_LAYER_GAIN if is_last_layer else (8 * num_layers) ** -0.5,
    )


def _rule(name: str, scales: Scales, **texts: str) -> Scheme:
    return Scheme(
        name="deepnorm",
        rule=name,
        scales=scales,
        counts="branches" if name == "deepnet" else "layers",
        init=_INIT,
        formula=texts["formula"],
        reference=texts["reference"],
        limits=texts["limits"],
        when=texts["when"],
        uses_depth="forward",
        varies_by_layer=name == "article",
    )


DEEPNORM_RULES: tuple[Scheme, ...] = (
    _rule(
        "deepnet",
        deepnet,
        formula="x' = LN(alpha x + f(x)), alpha = B^(1/4), beta = (4B)^(-1/4); encoder of an encoder-decoder "
        "alpha = 0.81 (N^4 M)^(1/16), beta = 0.87 (N^4 M)^(-1/16)",
        reference="Wang et al. 2022, arXiv:2203.00555, figure 2 and theorems 4.2 and 4.3",
        limits="alpha belongs to the depth: a checkpoint of another depth, or a stack that lost layers, needs it "
        "re-derived. Tolerates a narrower range of learning rates than pre-LN or KEEL.",
        when="Post-norm models too deep for post-LN; the default rule, and the right one.",
    ),
    _rule(
        "deeploop",
        _power((2, 0.5), (8, -0.5)),
        formula="x' = LN(alpha x + f(x)), alpha = (2L)^(1/2), beta = (8L)^(-1/2)",
        reference="arXiv:2607.13491, for weight-tied (looped) stacks, L = unrolled depth",
        limits="In a stack with weights of its own per layer the update sum is 1/(8L): it under-trains as L grows.",
        when="One block applied L times with shared weights.",
    ),
    _rule(
        "glm130b",
        _power((2, 0.5), (2, -0.5)),
        formula="x' = LN(alpha x + f(x)), alpha = (2L)^(1/2), beta = (2L)^(-1/2)",
        reference="Zeng et al. 2022, arXiv:2210.02414, section 2.1, and the model code of that family; 11.83 at L = 70",
        limits="The update sum is 1/(2L): it under-trains as L grows.",
        when="To load or continue a model of that family.",
    ),
    _rule(
        "three-l",
        _power((3, 0.25), (3, -0.25)),
        formula="x' = LN(alpha x + f(x)), alpha = (3L)^(1/4), beta = (3L)^(-1/4)",
        reference="a study card on DeepNorm; found in no implementation",
        limits="The update sum of a plain stack is 2/3 instead of 1/2, a constant: close, without a derivation.",
        when="Only to compare it.",
    ),
    _rule(
        "per-stack",
        _power((2, 0.25), (8, -0.25)),
        formula="x' = LN(alpha x + f(x)), alpha = (2L)^(1/4), beta = (8L)^(-1/4), each stack from its own L",
        reference="a study card on DeepNorm, its encoder-decoder rule",
        limits="Ignores cross-attention: the decoder's three branches per layer sum to 3/4, and the encoder's part "
        "grows as M^(1/4). For a single stack it is `deepnet`.",
        when="Encoder-decoders whose branch counts `deepnet` has no formula for.",
    ),
    _rule(
        "article",
        article,
        formula="x' = LN(alpha x + f(x)), alpha = (2L)^(1/2), in an encoder-decoder (3L)^(1/2); beta = (8L)^(-1/2), "
        "0.1 in the last layer of each stack",
        reference="a blog article on DeepNorm",
        limits="The update sum falls as 1/L: it under-trains as L grows. Beyond 12 layers 0.1 makes the last layer "
        "the largest branch of all.",
        when="Only to compare it.",
    ),
)

DEEPNORM = DEEPNORM_RULES[0]
