"""Blocks that take parts, not flags: norms, residual branches, and the networks built from them."""

from kilolayer.nn.blocks import BridgedLayer, ChainBlock, FeedForward, Residual, ScaledNorm
from kilolayer.nn.cache import AttentionCache
from kilolayer.nn.causal_lm import CausalLM
from kilolayer.nn.config import TransformerConfig
from kilolayer.nn.decoder import TransformerDecoder
from kilolayer.nn.decoder_layer import TransformerDecoderLayer
from kilolayer.nn.deep_mlp import DeepMLP, build_block, build_deep_mlp
from kilolayer.nn.encoder import TransformerEncoder
from kilolayer.nn.encoder_layer import TransformerEncoderLayer
from kilolayer.nn.norms import NORMS, build_norm
from kilolayer.nn.profiling import profile_branches
from kilolayer.nn.seq2seq import Seq2Seq
from kilolayer.nn.transformer import Transformer

__all__ = [
    "NORMS",
    "AttentionCache",
    "BridgedLayer",
    "CausalLM",
    "ChainBlock",
    "DeepMLP",
    "FeedForward",
    "Residual",
    "ScaledNorm",
    "Seq2Seq",
    "Transformer",
    "TransformerConfig",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "build_block",
    "build_deep_mlp",
    "build_norm",
    "profile_branches",
]
