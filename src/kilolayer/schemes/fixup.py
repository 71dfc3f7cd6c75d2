"""Schemes that replace norms by initialization: Fixup and T-Fixup."""

from __future__ import annotations

from kilolayer.schemes.depth import Depth, Stack
from kilolayer.schemes.scales import BranchScales
from kilolayer.schemes.scheme import Scheme


def fixup(depth: Depth, stack: Stack, branch_index: int) -> BranchScales:
    """B^(-1/(2m-2)) for all but the last of the m matrices of a branch, 0 for the last; B of the whole network.

    m = 2 in a feed-forward branch. In attention m = 4: query, key, value and output multiply.
    """
    attention = depth.total_branches ** (-1 / 6)
    return BranchScales(
        learned=True,
        init_gain=depth.total_branches**-0.5,
        last_init_gain=0.0,
        role_gains=(("query", attention), ("key", attention), ("value", attention)),
    )


FIXUP = Scheme(
    name="fixup",
    formula="x' = x + lambda f(x), lambda = 1 at first, trained, one per branch",
    counts="branches",
    reference="Zhang et al. 2019, arXiv:1901.09321, section 3 (rules 1 to 3) and the authors' Transformer",
    scales=fixup,
    init="last matrix of each branch and the head 0; `feedforward_in` times B^(-1/2), `query`, `key`, `value` times "
    "B^(-1/6), B = branches of both stacks together",
    limits="Rule 3's scalar biases are what ordinary bias vectors already hold. A tied head cannot start at zero. "
    "Nothing bounds the stream after initialization: it wants more regularization than a norm.",
    when="Deep residual networks without norms.",
    uses_depth="init",
    head_gain=0.0,
)


def t_fixup(depth: Depth, stack: Stack, branch_index: int) -> BranchScales:
    """0.67 N^(-1/4) in the encoder, (9M)^(-1/4) in the decoder."""
    num_layers = depth.num_layers(stack)
    return BranchScales(init_gain=0.67 * num_layers**-0.25 if stack == "encoder" else (9 * num_layers) ** -0.25)


def t_fixup_embedding_gain(depth: Depth, stack: Stack) -> float:
    """(9L)^(-1/4), L = layers of the stack the embeddings feed."""
    return (9 * depth.num_layers(stack)) ** -0.25


T_FIXUP = Scheme(
    name="t-fixup",
    formula="x' = x + f(x)",
    counts="layers",
    reference="Huang et al. 2020 (ICML), T-Fixup initialization, and the authors' code",
    scales=t_fixup,
    init="`value`, `attention_out`, `feedforward_in`, `feedforward_out` times 0.67 N^(-1/4) in the encoder and "
    "(9M)^(-1/4) in the decoder on Xavier; embeddings N(0, 1/d) times (9L)^(-1/4); `query` and `key` at base",
    limits="Derived for encoder-decoders; a lone stack takes the formula of its name. The stream can overflow half "
    "precision at depth, since no norm stands on it.",
    when="Transformers without norm and without warm-up, up to a few hundred layers in float32.",
    uses_depth="init",
    embedding_gain=t_fixup_embedding_gain,
)
