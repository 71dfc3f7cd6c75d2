"""Tokens in, stream out: scaled embedding, positions, dropout; and logits from a stream."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from kilolayer.nn.config import TransformerConfig
from kilolayer.nn.positions import LearnedPositions, Rotation, SinusoidalPositions, build_rotation

LEARNED_STD = 0.5
"""Beside tokens of RMS 1: GPT-2's code draws positions at 0.01 and tokens at 0.02."""


class TokenEmbedding(nn.Module):
    """``dropout(positions(sqrt(width) * weight[tokens]))``; rotary positions stand in the attention instead.

    With entries of std ``1/sqrt(width)`` the tokens enter the stream with RMS 1.

    Shape: ``(batch, length) -> (batch, length, width)``.

    Raises:
        TypeError: tokens that are not integers.
        ValueError: tokens of another shape, ids outside of the vocabulary, or more tokens than learned positions.

    Reference: Vaswani et al. 2017, arXiv:1706.03762, section 3.4.
    """

    def __init__(self, config: TransformerConfig, vocab_size: int):
        super().__init__()
        # An Embedding would draw its values from the global generator; they are left to a plan.
        self.tokens = nn.utils.skip_init(nn.Embedding, vocab_size, config.width, device=torch.get_default_device())
        self.scale = math.sqrt(config.width)
        self.positions: nn.Module | None = None
        if config.positions == "sinusoidal":
            self.positions = SinusoidalPositions(config.width)
        elif config.positions == "learned" and config.max_length is not None:
            self.positions = LearnedPositions(config.max_length, config.width, std=LEARNED_STD)
        self.dropout = nn.Dropout(config.dropout)

    @property
    def weight(self) -> Tensor:
        """The embedding, one row per token."""
        return self.tokens.weight

    def forward(self, tokens: Tensor, start: int = 0) -> Tensor:
        check_tokens(tokens, self.tokens.num_embeddings)
        x = self.scale * self.tokens(tokens)
        return self.dropout(x if self.positions is None else self.positions(x, start))


def check_tokens(tokens: Tensor, vocab_size: int) -> None:
    """Raises ``TypeError`` or ``ValueError`` unless every entry is the id of a token.

    Not while a graph is compiled, nor on the meta device, where there are no values to look at.
    """
    if tokens.is_floating_point() or tokens.is_complex() or tokens.dtype == torch.bool:
        raise TypeError(f"token ids are integers, got a tensor of {tokens.dtype}")
    if tokens.dim() != 2:
        raise ValueError(f"token ids have shape (batch, length), got {tuple(tokens.shape)}")
    if torch.compiler.is_compiling() or tokens.is_meta or tokens.numel() == 0:
        return
    low, high = (int(bound) for bound in torch.stack(torch.aminmax(tokens)).tolist())
    if low < 0 or high >= vocab_size:
        wrong = low if low < 0 else high
        raise ValueError(
            f"token id {wrong} is outside of the vocabulary of {vocab_size}: ids run from 0 to {vocab_size - 1}; build "
            "the model with the tokenizer's vocabulary size"
        )


def rotation_for(config: TransformerConfig, x: Tensor, start: int = 0) -> Rotation | None:
    """The rotation of x's positions, the first of which is ``start``, where positions are rotary."""
    if config.positions != "rotary":
        return None
    return build_rotation(start + x.shape[1], config.width // config.num_heads, x.device, start=start)


def build_head(config: TransformerConfig, vocab_size: int) -> nn.Linear | None:
    """The output head, ``None`` where it is tied to an embedding."""
    if config.tied_head:
        return None
    device = torch.get_default_device()
    return nn.utils.skip_init(nn.Linear, config.width, vocab_size, bias=False, device=device)
