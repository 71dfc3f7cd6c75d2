import pytest

from kilolayer import nn as kn
from kilolayer.nn.stated_scale import fitting_depth, with_skip_scale
from kilolayer.schemes import Depth, get_scheme


def config(**fields):
    return kn.TransformerConfig(**({"vocab_size": 9, "width": 8, "num_heads": 2, "decoder_layers": 8} | fields))


def scales(**fields):
    return [scale for layer in kn.CausalLM(config(**fields)).decoder.layers for scale in layer.scales]


def scales_of(scheme, count):
    return scheme.at(Depth(decoder_layers=count), 0, "decoder").skip_scale


def test_a_scale_that_fits_changes_nothing():
    assert scales(skip_scale=2.0) == scales()


def test_a_stale_scale_is_refused_and_its_depth_named():
    message = (
        r"skip_scale=3.5566 does not fit 8 layers of 'deepnorm', whose scale is 2; 3.5566 is the scale of 80 layers.*"
        "skip_scale_is_meant=True"
    )
    with pytest.raises(ValueError, match=message):
        config(skip_scale=3.5566)


def test_a_scale_of_no_depth_is_refused_without_one():
    with pytest.raises(ValueError, match=r"whose scale is 2. Leave it out"):
        config(skip_scale=0.3)


def test_a_scale_that_is_meant_is_used_and_the_rest_stays():
    meant = scales(skip_scale=3.5566, skip_scale_is_meant=True)
    assert {scale.skip_scale for scale in meant} == {3.5566}
    assert {scale.init_gain for scale in meant} == {scale.init_gain for scale in scales()}


def test_statements_without_sense():
    with pytest.raises(ValueError, match=r"says that a skip_scale is meant, but none is given"):
        config(skip_scale_is_meant=True)
    with pytest.raises(ValueError, match=r"encoder and decoder have scales of their own"):
        config(skip_scale=2.0, encoder_layers=4)
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=r"skip_scale must be positive and finite"):
            with_skip_scale(get_scheme("deepnorm"), wrong)


@pytest.mark.parametrize("rule", ["deepnet", "glm130b", "three-l"])
def test_depths_are_found_again(rule):
    scheme = get_scheme("deepnorm", rule)
    for count in (1, 12, 70, 1000):
        assert fitting_depth(scales_of(scheme, count), scheme, "decoder") == count
    assert fitting_depth(1.0, get_scheme("post-ln"), "encoder") == 1
