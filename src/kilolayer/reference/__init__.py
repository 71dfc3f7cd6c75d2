"""NumPy twins with hand-written backward: the specification that the PyTorch code is tested against."""

from kilolayer.reference.blocks import ChainBlock, FeedForward, Residual
from kilolayer.reference.deep_mlp import DeepMLP, build_deep_mlp
from kilolayer.reference.layer import Layer
from kilolayer.reference.layers import Linear, ReLU, Sequential
from kilolayer.reference.norms import NORMS, BatchNorm, LayerNorm, RMSNorm
from kilolayer.reference.training import SGD, sgd_step, softmax_cross_entropy

__all__ = [
    "NORMS",
    "SGD",
    "BatchNorm",
    "ChainBlock",
    "DeepMLP",
    "FeedForward",
    "Layer",
    "LayerNorm",
    "Linear",
    "RMSNorm",
    "ReLU",
    "Residual",
    "Sequential",
    "build_deep_mlp",
    "sgd_step",
    "softmax_cross_entropy",
]
