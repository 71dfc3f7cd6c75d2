"""Predictions against closed forms, at a width where 1/n hardly counts."""

import math

import numpy as np
import pytest

from kilolayer.schemes import SCHEMES, Depth, get_scheme, log_stream_variances
from kilolayer.theory import NetworkSpec, batch_norm_rate, predict_scheme

WIDE = 1_000_000


def predict(scheme, num_layers, **options):
    batch_size = options.pop("batch_size", 16)
    return predict_scheme(
        NetworkSpec(scheme=scheme, num_layers=num_layers, width=WIDE, **options), batch_size=batch_size
    )


@pytest.mark.parametrize("scheme", [s.name for s in SCHEMES if not s.needs_profile and s.name not in ("b2t", "plain")])
def test_the_stream_of_a_linear_stack_is_the_schemes_own_prediction(scheme):
    num_layers = 12
    found = predict(scheme, num_layers, activation="identity", init="lecun", branches_per_layer=2)
    expected = log_stream_variances(get_scheme(scheme), Depth(encoder_layers=num_layers))
    np.testing.assert_allclose(2 * found.stream.log_median[1:], expected, atol=1e-3)


@pytest.mark.parametrize("num_branches", [1, 10, 1000])
def test_growth_of_residual_stacks(num_branches):
    residual = predict("residual", num_branches)
    assert residual.stream.log_median[-1] == pytest.approx(0.5 * num_branches * math.log(2), rel=1e-3)
    assert residual.gradient.log_median[0] == pytest.approx(0.5 * num_branches * math.log(2), rel=1e-3)
    scaled = predict("residual-scaled", num_branches)
    assert scaled.stream.median[-1] == pytest.approx((1 + 1 / (2 * num_branches)) ** (num_branches / 2), rel=1e-3)


@pytest.mark.parametrize("scheme", ["pre-ln", "sandwich-ln", "end-ln"])
def test_behind_pre_norms_stream_and_gradient_grow_as_the_root_of_depth(scheme):
    found = predict(scheme, 99)
    branches = np.arange(100)
    np.testing.assert_allclose(found.stream.median, np.sqrt(1 + branches), rtol=1e-3)
    np.testing.assert_allclose(found.gradient.median, np.sqrt(100 / (1 + branches)), rtol=1e-3)


def test_sub_lns_inner_norm_removes_the_mean_of_its_units():
    # J is pi / (pi - 1) times the branch's second moment gamma^2 with LayerNorm, equal to it with RMSNorm.
    gain = math.log(2 * 20)
    for norm, ratio in (("layer", math.pi / (math.pi - 1)), ("rms", 1.0)):
        found = predict("sub-ln", 20, norm=norm)
        stream = 1 + gain * np.arange(20)
        expected = np.prod(1 + ratio * gain / stream)
        assert found.gradient.median[0] ** 2 == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize(
    ("scheme", "rule"), [("post-ln", None), ("deepnorm", "deepnet"), ("deepnorm", "article"), ("keel", None)]
)
def test_post_norms_hold_stream_and_gradient_of_relu_branches(scheme, rule):
    found = predict(get_scheme(scheme, rule=rule), 50, branches_per_layer=2)
    np.testing.assert_allclose(found.stream.median, 1, rtol=1e-4)
    if scheme != "keel":
        np.testing.assert_allclose(found.gradient.median, 1, rtol=1e-3)
    assert found.backward_rate == pytest.approx(1, abs=1e-4)


def test_the_norms_jacobian():
    alpha = (4.0 * 25) ** 0.25 / 2**0.5
    beta = (4 * 25) ** -0.25
    deepnorm = predict("deepnorm", 25)
    np.testing.assert_allclose(deepnorm.norm_factor, (alpha**2 + beta**4) ** -0.5, rtol=1e-3)
    pre_ln = predict("pre-ln", 9)
    np.testing.assert_allclose(pre_ln.norm_factor, (1 + np.arange(9.0)) ** -0.5, rtol=1e-3)
    scaled = predict("layernorm-scaling", 9)
    stream = 1 + np.concatenate([[0], np.cumsum(1 / np.arange(1, 9))])
    np.testing.assert_allclose(scaled.norm_factor, (np.arange(1, 10) * stream) ** -0.5, rtol=1e-3)
    assert np.isnan(predict("residual", 3).norm_factor).all()


def test_identity_fraction_is_the_skips_share():
    np.testing.assert_allclose(predict("post-ln", 3).identity_fraction, 0.5, rtol=1e-3)
    np.testing.assert_allclose(predict("keel", 10).identity_fraction, 100 / 101, rtol=1e-3)
    np.testing.assert_allclose(predict("plain", 3).identity_fraction, 0)


def test_b2t_adds_coherently_both_ways():
    num_layers = 2
    u = 1 / num_layers**2
    found = predict("b2t", num_layers, branches_per_layer=2)
    first, coherence = 1 + u, (1 + u) ** -0.5
    last = 2 + 2 * coherence + u
    assert found.norm_factor == pytest.approx([first**-0.5, last**-0.5] * 2, rel=1e-3)
    # x_layer gets the sum's gradient as 1/s_1 + 1 (skips) and through the branches; J = u in each.
    per_layer = ((coherence + 1) ** 2 + u / first + u * (1 + u) / first) / last
    assert found.gradient.median[0] ** 2 == pytest.approx(per_layer**num_layers, rel=1e-3)


@pytest.mark.parametrize("scheme", ["rezero", "skipinit", "fixup"])
def test_branches_that_start_at_zero_leave_everything_as_it_is(scheme):
    found = predict(scheme, 40)
    np.testing.assert_allclose(found.stream.median, 1, rtol=1e-4)
    np.testing.assert_allclose(found.gradient.median, 1, rtol=1e-6)
    assert found.trainable_depth == math.inf


def test_rates_and_trainable_depth_of_a_chain():
    # One ReLU layer of variance 1/n halves second moments: chi_1 = 1/2. The first matrix sees no ReLU.
    found = predict("plain", 101, init="lecun")
    assert found.stream.rates[1:] == pytest.approx(2**-0.5, rel=1e-3)
    assert found.gradient.rates[1:] == pytest.approx(2**0.5, rel=1e-3)
    assert found.backward_rate == pytest.approx(2 ** (-0.5 * 100 / 101), rel=1e-4)
    assert found.forward_rate == pytest.approx(found.backward_rate, rel=1e-4)
    assert found.trainable_depth == pytest.approx(6 / math.log(2), rel=0.02)


def test_a_fixed_std_depends_on_the_width():
    rates = [
        predict_scheme(NetworkSpec(scheme="plain", num_layers=40, width=width, init="fixed-0.02")).stream.rates[20]
        for width in (256, 8192)
    ]
    assert rates == pytest.approx([0.226, 1.28], rel=0.02)


def test_batch_norms_without_skips_make_gradients_grow():
    found = predict("norm-only", 40, norm="batch", batch_size=128)
    assert 1 / found.gradient.rates[5:20].mean() == pytest.approx(batch_norm_rate(), rel=0.02)


def test_bands_scale_with_width_and_depth_and_vanish_on_a_normed_stream():
    def log_std(scheme, num_layers, width):
        found = predict_scheme(NetworkSpec(scheme=scheme, num_layers=num_layers, width=width))
        return found.stream.log_std[-1], found.gradient.log_std[0]

    narrow, wide, deep = log_std("plain", 100, 64), log_std("plain", 100, 256), log_std("plain", 400, 256)
    assert narrow[0] / wide[0] == pytest.approx(2, rel=0.02)
    assert deep[0] / wide[0] == pytest.approx(2, rel=0.1)
    # Gradients start in independent directions, which collapse into one.
    assert 2 < deep[1] / wide[1] < 3
    # Hanin and Nica: 5/n per ReLU layer in the second moment, once samples are alike.
    assert deep[0] == pytest.approx(0.5 * math.sqrt(5 * 400 / 256), rel=0.1)
    assert log_std("post-ln", 50, 64)[0] == 0
    assert log_std("post-ln", 50, 64)[1] > 0.1


def test_the_largest_activation_scales_with_the_stream_and_passes_float16():
    post, pre = predict("post-ln", 64), predict("pre-ln", 64)
    assert 3.5 < post.largest < 8
    assert 4 < pre.largest / post.largest < 9
    assert predict("residual", 64).largest > 65504
    assert predict("residual", 3000).largest == math.inf


def test_a_thousand_branches_past_the_range_of_float64_stay_finite_in_logarithms():
    found = predict("residual", 3000)
    assert found.stream.log_median[-1] == pytest.approx(1500 * math.log(2), rel=1e-2)
    assert found.stream.median[-1] == math.inf


def test_a_batch_of_one_is_refused():
    with pytest.raises(ValueError, match="batch_size 1"):
        predict("pre-ln", 2, batch_size=1)
