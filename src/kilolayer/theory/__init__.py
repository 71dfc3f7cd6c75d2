"""What the mathematics of random networks predicts, in NumPy: no torch."""

from kilolayer.theory.activations import ACTIVATIONS, Activation, get_activation
from kilolayer.theory.block import BlockSpec, HeadSpec
from kilolayer.theory.deep_mlp import deep_mlp_specs
from kilolayer.theory.gradient import GradientPrediction, predict_weight_grads
from kilolayer.theory.mean_field import (
    chi_one,
    correlation_length,
    cosine_map,
    next_variance,
    relu_cosine_after,
    trainable_depth,
    variance_fixed_point,
)
from kilolayer.theory.pairs import projection_gram, uniform_gram
from kilolayer.theory.rates import (
    BlockRates,
    batch_norm_rate,
    block_rates,
    critical_std,
    default_init_rate,
    relu_rate,
    residual_growth,
)
from kilolayer.theory.scheme_blocks import INITS, NetworkSpec, with_predicted_profile
from kilolayer.theory.scheme_stream import SchemePrediction, predict_scheme
from kilolayer.theory.size_band import SizeBand
from kilolayer.theory.stream import StreamPrediction, predict_stream

__all__ = [
    "ACTIVATIONS",
    "INITS",
    "Activation",
    "BlockRates",
    "BlockSpec",
    "GradientPrediction",
    "HeadSpec",
    "NetworkSpec",
    "SchemePrediction",
    "SizeBand",
    "StreamPrediction",
    "batch_norm_rate",
    "block_rates",
    "chi_one",
    "correlation_length",
    "cosine_map",
    "critical_std",
    "deep_mlp_specs",
    "default_init_rate",
    "get_activation",
    "next_variance",
    "predict_scheme",
    "predict_stream",
    "predict_weight_grads",
    "projection_gram",
    "relu_cosine_after",
    "relu_rate",
    "residual_growth",
    "trainable_depth",
    "uniform_gram",
    "variance_fixed_point",
    "with_predicted_profile",
]
