"""The hand-written backward of every layer, of the loss and of whole networks against finite differences."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_tools import (
    FINITE_DIFFERENCE_TOLERANCE,
    assert_close,
    buildable_schemes,
    numerical_gradient,
    randomize,
)

from kilolayer.reference import (
    NORMS,
    BatchNorm,
    ChainBlock,
    FeedForward,
    Layer,
    LayerNorm,
    Linear,
    ReLU,
    Residual,
    RMSNorm,
    Sequential,
    build_deep_mlp,
    softmax_cross_entropy,
)

LAYERS = {
    "linear": lambda width: Linear(width, width + 2),
    "relu": lambda width: ReLU(),
    "layer-norm": LayerNorm,
    "rms-norm": RMSNorm,
    "batch-norm": BatchNorm,
    "batch-norm-eval": lambda width: BatchNorm(width).eval(),
    "sequential": lambda width: Sequential(Linear(width, 4), RMSNorm(4), Linear(4, width)),
    "feed-forward": FeedForward,
    "chain": ChainBlock,
    "chain-norm": lambda width: ChainBlock(width, norm=LayerNorm(width)),
    "residual": lambda width: Residual(FeedForward(width)),
    "residual-every-slot": lambda width: Residual(
        FeedForward(width),
        pre_norm=LayerNorm(width),
        end_norm=RMSNorm(width),
        post_norm=BatchNorm(width),
        skip_scale=1.7,
        branch_scale=0.6,
    ),
}


def check_layer(layer: Layer, x: np.ndarray, rng: np.random.Generator) -> None:
    """Compare the gradients of a random linear functional of the output: parameters and input."""
    weights = rng.normal(size=layer.forward(x).shape)

    def loss() -> float:
        return float(np.sum(weights * layer.forward(x)))

    layer.forward(x)
    got = {"input": layer.backward(weights), **dict(layer.named_gradients())}
    arrays = {"input": x, **dict(layer.named_parameters())}
    wanted = {name: numerical_gradient(loss, array) for name, array in arrays.items()}
    assert_close(got.items(), wanted.items(), tolerance=FINITE_DIFFERENCE_TOLERANCE)


# From three features or samples on: with two, a norm returns +-1 and its derivative is all but zero.
@pytest.mark.parametrize("name", LAYERS)
@settings(max_examples=10)
@given(batch=st.integers(3, 6), width=st.integers(3, 7), seed=st.integers(0, 2**32 - 1))
def test_layer_gradients(name: str, batch: int, width: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    layer = LAYERS[name](width)
    randomize(layer, rng)
    for _, buffer in layer.named_buffers():
        buffer[...] = rng.uniform(0.5, 2.0, size=buffer.shape)
    check_layer(layer, rng.normal(size=(batch, width)), rng)


@settings(max_examples=25)
@given(batch=st.integers(1, 6), num_classes=st.integers(2, 7), seed=st.integers(0, 2**32 - 1))
def test_cross_entropy_gradient(batch: int, num_classes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits = 3 * rng.normal(size=(batch, num_classes))
    targets = rng.integers(num_classes, size=batch)
    _, grad = softmax_cross_entropy(logits, targets)
    wanted = numerical_gradient(lambda: softmax_cross_entropy(logits, targets)[0], logits)
    assert_close([("logits", grad)], [("logits", wanted)], tolerance=FINITE_DIFFERENCE_TOLERANCE)


def check_network(scheme: str, norm: str, *, width: int, num_blocks: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    model = build_deep_mlp(in_features=4, num_classes=3, width=width, num_blocks=num_blocks, scheme=scheme, norm=norm)
    randomize(model, rng)
    x, targets = rng.normal(size=(5, 4)), rng.integers(3, size=5)

    def loss() -> float:
        return softmax_cross_entropy(model.forward(x), targets)[0]

    _, grad = softmax_cross_entropy(model.forward(x), targets)
    got = {"input": model.backward(grad), **dict(model.named_gradients())}
    arrays = {"input": x, **dict(model.named_parameters())}
    wanted = {name: numerical_gradient(loss, array) for name, array in arrays.items()}
    assert_close(got.items(), wanted.items(), tolerance=FINITE_DIFFERENCE_TOLERANCE)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("scheme", buildable_schemes())
def test_network_gradients(scheme: str, norm: str) -> None:
    check_network(scheme, norm, width=5, num_blocks=3, seed=7)


@settings(max_examples=10)
@given(
    scheme=st.sampled_from(buildable_schemes()),
    norm=st.sampled_from(sorted(NORMS)),
    width=st.integers(3, 6),
    num_blocks=st.integers(1, 5),
    seed=st.integers(0, 2**32 - 1),
)
def test_network_gradients_at_random_shapes(scheme: str, norm: str, width: int, num_blocks: int, seed: int) -> None:
    check_network(scheme, norm, width=width, num_blocks=num_blocks, seed=seed)


def test_a_wrong_derivative_is_noticed() -> None:
    class Wrong(ReLU):
        def backward(self, grad_out: np.ndarray) -> np.ndarray:
            return super().backward(grad_out) * (1 + 1e-5)

    rng = np.random.default_rng(0)
    with pytest.raises(AssertionError, match=r"input: relative error 1\.0e-05"):
        check_layer(Wrong(), rng.normal(size=(4, 5)), rng)
