"""Coefficients at any depth."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kilolayer.schemes import RULE_NAMES, SCHEMES, Depth, coefficients, get_scheme

layers = st.integers(min_value=1, max_value=10**6)
rules = st.sampled_from(RULE_NAMES)


@given(layers)
def test_one_stack_is_bounded_at_every_depth_under_deepnet(num_layers):
    assert coefficients(num_layers).update_sum.encoder == pytest.approx(0.5)
    assert coefficients(0, num_layers).update_sum.decoder == pytest.approx(0.5)


@given(layers, layers)
def test_two_stacks_are_bounded_at_every_depth_under_deepnet(encoder_layers, decoder_layers):
    sums = coefficients(encoder_layers, decoder_layers).update_sum
    assert sums.decoder == pytest.approx(0.5)
    assert sums.coupled == pytest.approx(1.00609, abs=1e-5)


@given(rules, layers, layers)
def test_a_deeper_stack_skips_more_and_starts_smaller(rule, num_layers, more):
    shallow, deep = coefficients(num_layers + 1, rule=rule), coefficients(num_layers + 1 + more, rule=rule)
    assert deep.encoder.skip_scale > shallow.encoder.skip_scale
    assert deep.encoder.init_gain < shallow.encoder.init_gain


@given(rules, layers)
def test_an_encoder_alone_equals_a_decoder_alone(rule, num_layers):
    assert coefficients(num_layers, 0, rule=rule).encoder == coefficients(0, num_layers, rule=rule).decoder


@given(rules, st.integers(0, 10**6), st.integers(0, 10**6))
def test_the_json_form_is_finite_and_survives_the_round_trip(rule, encoder_layers, decoder_layers):
    if encoder_layers + decoder_layers == 0:
        return
    fields = coefficients(encoder_layers, decoder_layers, rule=rule).to_dict()
    assert json.loads(json.dumps(fields, allow_nan=False)) == fields
    assert (fields["encoder"] is None) == (encoder_layers == 0)
    assert (fields["decoder"] is None) == (decoder_layers == 0)


@given(st.text(min_size=1).filter(lambda name: name not in ("encoder_layers", "decoder_layers", "rule")))
def test_no_other_argument_is_taken(name):
    with pytest.raises(TypeError, match="batch size and width never enter"):
        coefficients(6, **{name: 32})


@given(
    st.sampled_from([scheme for scheme in SCHEMES if not scheme.needs_profile]),
    st.integers(1, 10_000),
    st.integers(1, 3),
    st.data(),
)
def test_every_scheme_is_finite_at_every_position(scheme, num_layers, per_layer, data):
    depth = Depth(encoder_layers=num_layers, encoder_branches_per_layer=per_layer)
    index = data.draw(st.integers(0, depth.num_branches("encoder") - 1))
    scales = scheme.at(depth, index)
    assert math.isfinite(scales.skip_scale)
    assert scales.skip_scale > 0
    assert 0 <= scales.gain("feedforward_out") < 4


@given(layers)
def test_the_branch_is_small_against_the_skip_as_the_root_of_the_branches(num_layers):
    scales = get_scheme("deepnorm").at(Depth(encoder_layers=num_layers), 0)
    assert scales.init_gain / scales.skip_scale == pytest.approx((4 * num_layers) ** -0.5)
