"""Schemes that differ in where norms stand."""

import math

import pytest

from kilolayer.schemes import Depth, get_scheme


@pytest.mark.parametrize(
    ("name", "placement", "final_norm"),
    [
        ("sandwich-ln", "pre+end", True),
        ("end-ln", "end", True),
        ("sub-ln", "pre+inner", True),
        ("keel", "pre+post", False),
        ("layernorm-scaling", "pre", True),
        ("b2t", "post", False),
    ],
)
def test_placements(name, placement, final_norm):
    scheme = get_scheme(name)
    assert scheme.at(Depth(encoder_layers=8), 3).norm_placement == placement
    assert scheme.final_norm is final_norm


@pytest.mark.parametrize(("num_layers", "gamma"), [(6, 1.5764), (24, 1.9675), (1000, 2.7570)])
def test_sub_ln_of_one_stack(num_layers, gamma):
    for depth, stack in ((Depth(encoder_layers=num_layers), "encoder"), (Depth(decoder_layers=num_layers), "decoder")):
        scales = get_scheme("sub-ln").at(depth, 0, stack)
        assert scales.gain("value") == scales.gain("feedforward_out") == pytest.approx(gamma, abs=5e-5)
        assert scales.gain("query") == 1.0


def test_sub_ln_of_an_encoder_decoder_leaves_cross_attention_alone():
    depth = Depth(encoder_layers=6, decoder_layers=4)
    scheme = get_scheme("sub-ln")
    encoder = math.sqrt(math.log(12) * math.log(12) / 3)
    assert scheme.at(depth, 0, "encoder").gain("value") == pytest.approx(encoder)
    decoder = [scheme.at(depth, index, "decoder").gain("value") for index in range(3)]
    assert decoder == [pytest.approx(math.sqrt(math.log(12))), 1.0, pytest.approx(math.sqrt(math.log(12)))]


def test_keel_skips_with_the_number_of_branches():
    assert get_scheme("keel").at(Depth(decoder_layers=64), 0, "decoder").skip_scale == 128.0
    assert get_scheme("keel").at(Depth(encoder_layers=64, encoder_branches_per_layer=1), 0).skip_scale == 64.0


def test_layernorm_scaling_goes_by_the_number_of_the_layer():
    scheme = get_scheme("layernorm-scaling")
    depth = Depth(encoder_layers=2, decoder_layers=9)
    assert scheme.at(depth, 3, "encoder").norm_output_scale == pytest.approx(1 / math.sqrt(2))
    assert [scheme.at(depth, index, "decoder").norm_output_scale for index in (24, 25, 26)] == [
        pytest.approx(1 / 3)
    ] * 3


@pytest.mark.parametrize(("num_layers", "num_post"), [(3, 0), (4, 1), (12, 3), (24, 6), (27, 6)])
def test_mix_ln_is_post_norm_in_the_first_quarter(num_layers, num_post):
    depth = Depth(decoder_layers=num_layers)
    placements = [get_scheme("mix-ln").at(depth, index, "decoder").norm_placement for index in range(2 * num_layers)]
    assert placements == ["post"] * (2 * num_post) + ["pre"] * (2 * (num_layers - num_post))


def test_b2t_adds_the_input_of_the_layer_in_its_last_branch():
    depth = Depth(encoder_layers=2, decoder_layers=2)
    scheme = get_scheme("b2t")
    assert [scheme.at(depth, index, "encoder").layer_skip_scale for index in range(4)] == [0, 1, 0, 1]
    assert [scheme.at(depth, index, "decoder").layer_skip_scale for index in range(6)] == [0, 0, 1, 0, 0, 1]


def test_b2t_has_nothing_to_bridge_in_a_layer_of_one_branch():
    depth = Depth(encoder_layers=5, encoder_branches_per_layer=1)
    assert get_scheme("b2t").at(depth, 2).layer_skip_scale == 0


def test_b2t_scales_every_matrix_of_a_layer():
    scales = get_scheme("b2t").at(Depth(encoder_layers=16), 0)
    for role in ("query", "key", "value", "attention_out", "feedforward_in", "feedforward_gate", "feedforward_out"):
        assert scales.gain(role) == 0.25
