"""Layers and branches of a network."""

import pytest

from kilolayer.schemes import Depth


def test_one_stack_has_two_branches_per_layer():
    assert Depth(encoder_layers=12).num_branches("encoder") == 24
    assert Depth(decoder_layers=12).num_branches("decoder") == 24


def test_a_thousand_layers_of_encoder_decoder_are_2500_branches():
    depth = Depth(encoder_layers=500, decoder_layers=500)
    assert (depth.num_branches("encoder"), depth.num_branches("decoder")) == (1000, 1500)
    assert depth.total_branches == 2500
    assert depth.stacks == ("encoder", "decoder")


def test_only_the_stacks_with_layers_are_listed():
    assert Depth(decoder_layers=3).stacks == ("decoder",)
    assert not Depth(decoder_layers=3).is_encoder_decoder


def test_a_deep_mlp_has_one_branch_per_block():
    depth = Depth(encoder_layers=64, encoder_branches_per_layer=1)
    assert depth.num_branches("encoder") == 64
    assert depth.layer_index("encoder", 63) == 63


def test_positions_within_a_decoder_layer():
    depth = Depth(encoder_layers=1, decoder_layers=2)
    indices = range(depth.num_branches("decoder"))
    assert [depth.layer_index("decoder", index) for index in indices] == [0, 0, 0, 1, 1, 1]
    assert [depth.is_cross_attention("decoder", index) for index in indices] == [False, True, False] * 2
    assert [depth.is_last_of_layer("decoder", index) for index in indices] == [False, False, True] * 2


def test_nothing_attends_to_an_encoder_that_is_not_there():
    assert not Depth(decoder_layers=2, decoder_branches_per_layer=3).is_cross_attention("decoder", 1)
    assert not Depth(encoder_layers=2, decoder_layers=2).is_cross_attention("encoder", 1)


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({}, "at least one layer"),
        ({"encoder_layers": -1}, "encoder_layers must be >= 0, got -1"),
        ({"decoder_layers": -2}, "decoder_layers must be >= 0, got -2"),
        ({"encoder_layers": 2, "encoder_branches_per_layer": 0}, "encoder_branches_per_layer must be >= 1, got 0"),
        ({"decoder_layers": 2, "decoder_branches_per_layer": 0}, "decoder_branches_per_layer must be >= 1, got 0"),
    ],
)
def test_impossible_counts_are_refused(counts, message):
    with pytest.raises(ValueError, match=message):
        Depth(**counts)


@pytest.mark.parametrize("value", [6.0, "6", True, None])
def test_a_count_must_be_an_int(value):
    with pytest.raises(TypeError, match="encoder_layers must be an int"):
        Depth(encoder_layers=value)


def test_an_unknown_stack_is_refused():
    with pytest.raises(ValueError, match="unknown stack 'middle'; use 'encoder' or 'decoder'"):
        Depth(encoder_layers=1).num_branches("middle")


@pytest.mark.parametrize("name", ["encoder_layers", "decoder_layers", "encoder_branches_per_layer"])
def test_counts_past_all_sense_are_refused(name):
    settings = {"encoder_layers": 1} | {name: 10**9}
    assert getattr(Depth(**settings), name) == 10**9
    with pytest.raises(ValueError, match=rf"{name} must be at most 1,000,000,000, got a number of 401 digits"):
        Depth(**settings | {name: 10**400})
