"""Factors per block: known constants, drawn blocks, and agreement with the propagated predictions."""

import math

import numpy as np
import pytest

from kilolayer.theory import (
    BlockSpec,
    batch_norm_rate,
    block_rates,
    critical_std,
    deep_mlp_specs,
    default_init_rate,
    get_activation,
    next_variance,
    predict_stream,
    relu_rate,
    residual_growth,
    uniform_gram,
)

N = 100
BRANCH = (math.sqrt(2 / N), math.sqrt(1 / N))


def test_relu_rate_of_known_initializations():
    assert relu_rate(math.sqrt(2 / 300), 300) == pytest.approx(1)
    assert relu_rate(math.sqrt(1 / 300), 300) == pytest.approx(0.5**0.5)
    assert relu_rate(0.02, 5000) == pytest.approx(1)


def test_torch_default_rate_and_where_it_comes_from():
    assert default_init_rate() == pytest.approx(math.sqrt(1 / 6))
    bound = np.random.default_rng(0).uniform(-1, 1, 100_000)
    assert default_init_rate() == pytest.approx(math.sqrt(bound.var() / 2), rel=0.01)


def test_critical_std_keeps_the_variance():
    for name in ("relu", "tanh", "gelu", "sigmoid"):
        std = critical_std(name, 50, variance=1.7)
        assert next_variance(1.7, name, weight_variance=50 * std**2) == pytest.approx(1.7)


def test_batch_norm_rate():
    assert batch_norm_rate() == pytest.approx(math.sqrt(math.pi / (math.pi - 1)))
    rng = np.random.default_rng(0)
    z = rng.standard_normal(400_000)
    expected = math.sqrt(((1 - np.tanh(z) ** 2) ** 2).mean() / np.tanh(z).var())
    assert batch_norm_rate("tanh") == pytest.approx(expected, rel=0.01)


def test_residual_growth():
    assert residual_growth(1.0) == pytest.approx(math.sqrt(2))
    assert residual_growth(2.0, skip_scale=2.0) == pytest.approx(math.sqrt(6))
    with pytest.raises(ValueError, match="got -1"):
        residual_growth(-1.0)


def test_chain_block():
    rates = block_rates(BlockSpec(N, (math.sqrt(1 / N),), has_skip=False, input_activated=True))
    assert rates.forward == pytest.approx(0.5**0.5)
    assert rates.backward == pytest.approx(0.5**0.5)
    assert rates.log_variance == pytest.approx(5 / N)
    assert rates.branch_to_skip == math.inf
    assert rates.identity_fraction == 0


def test_residual_block():
    rates = block_rates(BlockSpec(N, BRANCH), input_rms=3.0)
    assert rates.branch_gain == pytest.approx(1)
    assert rates.forward == rates.backward == pytest.approx(math.sqrt(2))
    assert rates.log_variance == pytest.approx(11 / (4 * N))


def test_pre_norm_branch_shrinks_beside_a_growing_stream():
    rates = block_rates(BlockSpec(N, BRANCH, norm_placement="pre"), input_rms=4.0)
    assert rates.branch_gain == pytest.approx(1 / 16)
    assert rates.forward == pytest.approx(math.sqrt(17 / 16))
    assert rates.backward == pytest.approx(math.sqrt(17 / 16))


def test_post_norm_and_deepnorm():
    post = block_rates(BlockSpec(N, BRANCH, norm_placement="post"))
    assert (post.forward, post.log_variance) == (1, 0)
    assert post.backward == pytest.approx(1)
    assert post.identity_fraction == pytest.approx(0.5)
    deep = block_rates(deep_mlp_specs("deepnorm", 16, width=N)[0][0])
    gain = 1 / (4 * 16)
    assert deep.branch_gain == pytest.approx(gain)
    assert deep.identity_fraction == pytest.approx(4 / (4 + gain))
    assert deep.branch_to_skip == pytest.approx(math.sqrt(gain / 4))


def test_update_condition_of_deepnorm_from_its_rates():
    """branch_to_skip^2 sums to (1/4) / sqrt(B) over B branches: the branch never adds up to the skip."""
    blocks, _ = deep_mlp_specs("deepnorm", 100, width=N)
    assert sum(block_rates(block).branch_to_skip ** 2 for block in blocks) == pytest.approx(0.25 / 10)


def test_batch_norm_chain_grows_gradients_and_its_skip_halves_that():
    chain = deep_mlp_specs("norm-only", 4, width=N, norm="batch")[0][1]
    assert block_rates(chain).backward == pytest.approx(batch_norm_rate())
    residual = BlockSpec(N, BRANCH, norm_placement="post", norm_kind="batch")
    assert 1 < block_rates(residual).backward < batch_norm_rate()


def test_end_and_inner_norms_set_the_branch():
    end = block_rates(BlockSpec(N, (0.7, 0.3), norm_placement="end"), input_rms=2.0)
    assert end.branch_gain == pytest.approx(1 / 4)
    inner = block_rates(BlockSpec(N, (0.7, math.sqrt(3 / N)), norm_placement="inner"), input_rms=2.0)
    assert inner.branch_gain == pytest.approx(3 / 4)


@pytest.mark.parametrize("activation", ["relu", "tanh", "gelu", "silu", "sigmoid"])
def test_backward_rate_agrees_with_drawn_jacobians(activation):
    width, phi = 400, get_activation(activation)
    block = BlockSpec(width, (0.06, 0.05), activation=activation)
    rng = np.random.default_rng(0)
    first, last = (rng.normal(0, std, (width, width)) for std in block.weight_stds)
    x, grad = rng.normal(0, 1.5, width), rng.normal(size=width)
    below = grad + (phi.derivative(first @ x) * (grad @ last)) @ first
    expected = block_rates(block, input_rms=float(np.sqrt((x**2).mean()))).backward
    # Relative scatter of a squared norm: sqrt((4 s^2 + 7 s^4) / n), below 0.1 here.
    assert math.sqrt((below**2).mean() / (grad**2).mean()) == pytest.approx(expected, rel=0.12)


@pytest.mark.parametrize("scheme", ["plain", "residual", "pre-ln", "sandwich-ln"])
def test_forward_rate_is_the_step_of_the_predicted_stream(scheme):
    blocks, _ = deep_mlp_specs(scheme, 6, width=N)
    prediction = predict_stream(blocks, uniform_gram(6, cosine=0.5))
    rms = np.exp(prediction.log_median + prediction.log_std**2)
    rate = block_rates(blocks[4], input_rms=float(rms[3])).forward
    assert rms[4] / rms[3] == pytest.approx(rate, rel=0.01)


def test_a_block_that_gives_nothing():
    rates = block_rates(BlockSpec(N, (0.0,), has_skip=False))
    assert (rates.forward, rates.backward, rates.branch_gain) == (0, 0, 0)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="input_rms must be positive, got 0"):
        block_rates(BlockSpec(N, BRANCH), input_rms=0.0)


@pytest.mark.parametrize(("norm_kind", "ratio"), [("layer", math.pi / (math.pi - 1)), ("rms", 1.0)])
def test_an_inner_layer_norm_passes_more_gradient_than_signal(norm_kind, ratio):
    rates = block_rates(BlockSpec(N, BRANCH, norm_placement="pre+inner", norm_kind=norm_kind))
    assert rates.forward**2 == pytest.approx(2)
    assert rates.backward**2 == pytest.approx(1 + ratio)
