"""Blocks that take parts, not flags: norms, residual branches and the deep MLP built from them."""

from kilolayer.nn.blocks import ChainBlock, FeedForward, Residual
from kilolayer.nn.deep_mlp import DeepMLP, build_block, build_deep_mlp
from kilolayer.nn.norms import NORMS, build_norm

__all__ = [
    "NORMS",
    "ChainBlock",
    "DeepMLP",
    "FeedForward",
    "Residual",
    "build_block",
    "build_deep_mlp",
    "build_norm",
]
