"""The update sums against sums written out by hand."""

import math

import pytest

from kilolayer.lab.update_schemes import get_update_scheme
from kilolayer.lab.update_theory import predict_update_sums
from kilolayer.schemes import Depth, coefficients, get_scheme

DEPTH = Depth(decoder_layers=24)
B = 48


def sums(name, depth=DEPTH, stack="decoder"):
    return predict_update_sums(get_update_scheme(name), depth, stack)


@pytest.mark.parametrize("rule", ["deepnet", "deeploop", "glm130b", "three-l", "per-stack", "article"])
def test_sgd_is_the_update_sum_of_the_coefficients(rule):
    expected = coefficients(decoder_layers=24, rule=rule).update_sum.decoder
    assert sums(f"deepnorm:{rule}").sgd == pytest.approx(expected)


@pytest.mark.parametrize("num_layers", [5, 50, 500])
def test_deepnorms_sum_is_a_half_at_any_depth_for_sgd_and_grows_for_adamw(num_layers):
    found = sums("deepnorm", Depth(decoder_layers=num_layers))
    assert found.sgd == pytest.approx(0.5)
    assert found.adamw == pytest.approx(math.sqrt(num_layers))


def test_post_ln_counts_its_branches():
    found = sums("post-ln")
    assert (found.sgd, found.adamw) == (B, B)
    assert (found.of("sgd"), found.of("adamw")) == (found.sgd, found.adamw)


def test_beta_alone_leaves_a_square_root():
    assert sums("post-ln:beta-only").sgd == pytest.approx(math.sqrt(B) / 2)


@pytest.mark.parametrize("power", [0.0, 0.125, 0.25, 0.375, 0.5])
def test_a_power_p_grows_as_one_minus_four_p(power):
    shallow, deep = (sums(f"deepnorm:power-{power}", Depth(decoder_layers=n)).sgd for n in (10, 1000))
    assert math.log(deep / shallow) / math.log(100) == pytest.approx(1 - 4 * power, abs=1e-9)


def test_pre_ln_is_a_harmonic_sum():
    found = sums("pre-ln")
    assert found.sgd == pytest.approx(sum(1 / (1 + b) for b in range(1, B + 1)))
    assert found.adamw == pytest.approx(sum((1 + b) ** -0.5 for b in range(1, B + 1)))


def test_a_scaled_last_matrix_counts_as_half_of_the_pair():
    depth = Depth(encoder_layers=16, encoder_branches_per_layer=1)
    gain = (2 * 16) ** -0.5
    expected = sum((1 + gain**2) / 2 / (1 + b * gain**2) for b in range(1, 17))
    assert sums("pre-ln-scaled", depth, "encoder").sgd == pytest.approx(expected)


@pytest.mark.parametrize("name", ["sandwich-ln", "rezero", "keel", "admin", "mix-ln", "b2t", "residual"])
def test_where_theory_has_no_sum_there_is_none(name):
    assert predict_update_sums(get_scheme(name), DEPTH, "decoder") is None
