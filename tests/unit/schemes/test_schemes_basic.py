"""Chains, plain skips, post-LN and pre-LN."""

import pytest

from kilolayer.schemes import BranchScales, Depth, get_scheme


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("plain", BranchScales(has_skip=False)),
        ("norm-only", BranchScales(norm_placement="post", has_skip=False)),
        ("residual", BranchScales()),
        ("post-ln", BranchScales(norm_placement="post")),
        ("pre-ln", BranchScales(norm_placement="pre")),
    ],
)
def test_constant_schemes(name, expected):
    assert get_scheme(name).at(Depth(encoder_layers=3), 5) == expected
    assert get_scheme(name).at(Depth(encoder_layers=3, decoder_layers=70), 200, "decoder") == expected


@pytest.mark.parametrize(("name", "placement"), [("residual-scaled", "none"), ("pre-ln-scaled", "pre")])
@pytest.mark.parametrize(("num_layers", "gain"), [(8, 0.25), (32, 0.125), (512, 0.03125)])
def test_one_over_root_2l_counts_layers_whatever_their_branches(name, placement, num_layers, gain):
    for per_layer in (1, 2):
        scales = get_scheme(name).at(Depth(encoder_layers=num_layers, encoder_branches_per_layer=per_layer), 0)
        assert scales.norm_placement == placement
        assert scales.gain("feedforward_out") == scales.gain("attention_out") == pytest.approx(gain)
        assert scales.gain("feedforward_in") == scales.gain("value") == 1.0


def test_each_stack_counts_its_own_layers():
    depth = Depth(encoder_layers=8, decoder_layers=32)
    scheme = get_scheme("pre-ln-scaled")
    assert scheme.at(depth, 0, "encoder").last_init_gain == pytest.approx(0.25)
    assert scheme.at(depth, 0, "decoder").last_init_gain == pytest.approx(0.125)
