"""Specs of the lab's deep MLP against the network and initialisation plan that are really built."""

import math

import pytest

from kilolayer.nn import build_deep_mlp
from kilolayer.schemes import SCHEMES, Depth
from kilolayer.theory import deep_mlp_specs

WIDTH, BLOCKS = 96, 6

DEPTH = Depth(encoder_layers=BLOCKS, encoder_branches_per_layer=1)
BUILDABLE = [
    scheme for scheme in SCHEMES if not scheme.needs_profile and not scheme.at(DEPTH, BLOCKS - 1).special_parts
]


@pytest.mark.parametrize("scheme", BUILDABLE, ids=lambda one: f"{one.name}-{one.rule}")
def test_stds_are_those_of_the_built_network(scheme):
    blocks, head = deep_mlp_specs(scheme, BLOCKS, width=WIDTH)
    model = build_deep_mlp(in_features=8, num_classes=10, width=WIDTH, num_blocks=BLOCKS, scheme=scheme)
    for spec, block in zip(blocks, model.blocks, strict=True):
        weights = [one for name, one in block.named_parameters() if "linear" in name and "weight" in name]
        # 9,216 weights: a std is known to 1/sqrt(2 * 9,216) = 0.7 %.
        assert [float(one.detach().std()) for one in weights] == pytest.approx(list(spec.weight_stds), rel=0.03)
        assert spec.has_skip == hasattr(block, "skip_scale")
        if spec.has_skip:
            assert (spec.skip_scale, spec.branch_scale) == (block.skip_scale, block.branch_scale)
    assert float(model.head.weight.detach().std()) == pytest.approx(head.weight_std, rel=0.1)
    assert (head.norm_kind is None) == (model.final_norm is None)


def test_lecun_chains_lose_the_factor_two():
    kaiming = deep_mlp_specs("plain", 2, width=64)[0][0]
    lecun = deep_mlp_specs("plain", 2, width=64, chain_init="lecun")[0][0]
    assert kaiming.weight_stds[0] / lecun.weight_stds[0] == pytest.approx(math.sqrt(2))


def test_chains_are_read_before_their_relu():
    blocks, head = deep_mlp_specs("norm-only", 3, width=64, norm="rms")
    assert [block.input_activated for block in blocks] == [False, True, True]
    assert head.input_activated
    assert {block.norm_kind for block in blocks} == {"rms"}


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="chain_init 'xavier' is unknown"):
        deep_mlp_specs("plain", 2, width=64, chain_init="xavier")
    with pytest.raises(ValueError, match="unknown scheme"):
        deep_mlp_specs("postln", 2, width=64)
