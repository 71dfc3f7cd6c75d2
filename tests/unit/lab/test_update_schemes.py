"""DeepNorm taken apart: half of it, and other exponents."""

import math

import pytest

from kilolayer.lab.update_schemes import get_update_scheme
from kilolayer.schemes import Depth, get_scheme

DEPTH = Depth(decoder_layers=50)


def test_beta_only_has_deepnorms_initial_values_on_post_lns_skip():
    half, whole = get_update_scheme("post-ln:beta-only"), get_scheme("deepnorm")
    scales, deepnorm = half.at(DEPTH, 7, "decoder"), whole.at(DEPTH, 7, "decoder")
    assert (half.name, half.rule) == ("post-ln", "beta-only")
    assert scales.skip_scale == 1.0
    assert scales.init_gain == deepnorm.init_gain
    assert scales.norm_placement == "post"
    assert half.uses_depth == "init"


@pytest.mark.parametrize("power", [0.0, 0.125, 0.25, 0.5])
def test_a_power_is_the_exponent_of_both_scales(power):
    scales = get_update_scheme(f"deepnorm:power-{power}").at(DEPTH, 0, "decoder")
    assert scales.skip_scale == pytest.approx(100**power)
    assert scales.init_gain == pytest.approx(400**-power)


def test_a_quarter_is_deepnorm_and_zero_is_post_ln():
    for name, same in (("deepnorm:power-0.25", "deepnorm"), ("deepnorm:power-0", "post-ln")):
        ours, theirs = (scheme.at(DEPTH, 3, "decoder") for scheme in (get_update_scheme(name), get_scheme(same)))
        assert math.isclose(ours.skip_scale, theirs.skip_scale)
        assert math.isclose(ours.init_gain, theirs.init_gain)


def test_the_registrys_schemes_and_rules_are_there():
    assert get_update_scheme("pre-ln") is get_scheme("pre-ln")
    assert get_update_scheme("deepnorm:glm130b").rule == "glm130b"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("deepnrm", "did you mean 'deepnorm'"),
        ("deepnorm:power-x", "power-P with P from 0 to 2"),
        ("deepnorm:power--1", "power-P"),
        ("deepnorm:power-3", "from 0 to 2"),
        ("plain", "has no skips"),
        ("norm-only", "has no skips"),
        ("pre-ln:beta-only", "has no rules"),
    ],
)
def test_a_mistake_says_what_is_meant(name, message):
    with pytest.raises(ValueError, match=message):
        get_update_scheme(name)
