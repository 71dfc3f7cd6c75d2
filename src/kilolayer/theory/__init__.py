"""What the mathematics of random networks predicts, in NumPy: no torch."""

from kilolayer.theory.activations import ACTIVATIONS, Activation, get_activation
from kilolayer.theory.mean_field import (
    chi_one,
    correlation_length,
    cosine_map,
    next_variance,
    relu_cosine_after,
    trainable_depth,
    variance_fixed_point,
)

__all__ = [
    "ACTIVATIONS",
    "Activation",
    "chi_one",
    "correlation_length",
    "cosine_map",
    "get_activation",
    "next_variance",
    "relu_cosine_after",
    "trainable_depth",
    "variance_fixed_point",
]
