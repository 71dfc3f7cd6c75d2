"""From scheme, depth and initialization to blocks."""

import math

import pytest

from kilolayer.schemes import SCHEMES, get_scheme
from kilolayer.theory import NetworkSpec, with_predicted_profile
from kilolayer.theory.scheme_blocks import INITS, build_blocks


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
@pytest.mark.parametrize("branches_per_layer", [1, 2, 3])
def test_one_block_per_branch_with_the_schemes_parts(scheme, branches_per_layer):
    network = with_predicted_profile(
        NetworkSpec(scheme=scheme, num_layers=6, branches_per_layer=branches_per_layer, width=32)
    )
    blocks, bridges = build_blocks(network)
    assert len(blocks) == 6 * branches_per_layer
    bridged = {bridge.last for bridge in bridges}
    for index, (block, scales) in enumerate(zip(blocks, network.scales(), strict=True)):
        assert block.norm_placement == scales.norm_placement
        assert block.has_skip == scales.has_skip
        assert block.branch_scale == scales.branch_scale
        assert block.norm_output_scale == scales.norm_output_scale
        assert (index in bridged) == (scales.layer_skip_scale != 0)
        if index not in bridged:
            assert block.skip_scale == scales.skip_scale
        assert block.weight_stds[0] == pytest.approx(math.sqrt(2 / 32) * scales.gain("feedforward_in"))
        if scales.has_skip:
            assert block.weight_stds[1] == pytest.approx(math.sqrt(1 / 32) * scales.gain("feedforward_out"))


@pytest.mark.parametrize(
    ("init", "first", "last"),
    [
        ("kaiming", 2 / 50, 1 / 50),
        ("lecun", 1 / 50, 1 / 50),
        ("xavier", 1 / 50, 1 / 50),
        ("orthogonal", 1 / 50, 1 / 50),
        ("fixed-0.02", 0.0004, 0.0004),
        ("torch-default", 1 / 150, 1 / 150),
    ],
)
def test_variances_of_every_init(init, first, last):
    network = NetworkSpec(scheme="residual", num_layers=2, width=50, init=init)
    assert init in INITS
    assert network.weight_std(before_activation=True) ** 2 == pytest.approx(first)
    assert network.weight_std(before_activation=False) ** 2 == pytest.approx(last)


def test_the_variances_agree_with_the_initialization_plans_of_square_matrices():
    from kilolayer.init import BASE_RULES

    for rule in BASE_RULES:
        network = NetworkSpec(scheme="plain", num_layers=1, width=64, init=rule.name)
        assert network.weight_std(before_activation=True) == pytest.approx(rule.std(64, 64))


def test_a_bridge_by_hand():
    # gain 1/sqrt(4) on both matrices: branch second moment 1/16. First branch: s^2 = 1 + 1/16, coherence 1/s.
    _, bridges = build_blocks(NetworkSpec(scheme="b2t", num_layers=4, branches_per_layer=2, width=16))
    coherence = (1 + 1 / 16) ** -0.5
    assert [(bridge.first, bridge.last) for bridge in bridges] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    for bridge in bridges:
        assert bridge.skip_scale == 1.0
        assert bridge.weight == pytest.approx(2 * coherence + 1)


def test_a_layer_of_one_branch_has_no_bridge():
    _, bridges = build_blocks(NetworkSpec(scheme="b2t", num_layers=4))
    assert bridges == ()


def test_admins_profile_is_that_of_post_ln():
    network = NetworkSpec(scheme="admin", num_layers=2, branches_per_layer=2, init="lecun")
    profiled = with_predicted_profile(network)
    # LeCun: each branch of a post-LN stream has second moment 1/2.
    assert [one.skip_scale for one in profiled.scales()] == pytest.approx([1, 1.5**0.5, 2**0.5, 2.5**0.5])
    assert with_predicted_profile(profiled) is profiled
    with pytest.raises(ValueError, match="profiling pass"):
        network.scales()


def test_a_scheme_object_keeps_its_rule():
    network = NetworkSpec(scheme=get_scheme("deepnorm", rule="glm130b"), num_layers=8)
    assert network.resolved_scheme.rule == "glm130b"
    assert network.scales()[0].skip_scale == 4.0


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"num_layers": 0}, "num_layers must be >= 1, got 0"),
        ({"width": -2}, "width must be >= 1, got -2"),
        ({"branches_per_layer": 0}, "branches_per_layer must be >= 1, got 0"),
        ({"init": "kaimin"}, "did you mean 'kaiming'"),
        ({"init": "zzz"}, "known: kaiming, lecun"),
        ({"scheme": "pre_ln"}, "did you mean 'pre-ln'"),
    ],
)
def test_mistakes(edit, message):
    with pytest.raises(ValueError, match=message):
        NetworkSpec(**{"scheme": "pre-ln", "num_layers": 2} | edit)


def test_mistakes_that_blocks_find():
    with pytest.raises(ValueError, match="did you mean 'relu'"):
        build_blocks(NetworkSpec(scheme="pre-ln", num_layers=2, activation="rleu"))
    with pytest.raises(ValueError, match="norm_kind 'group' is unknown"):
        build_blocks(NetworkSpec(scheme="pre-ln", num_layers=2, norm="group"))


@pytest.mark.parametrize("name", ["num_layers", "width", "branches_per_layer"])
@pytest.mark.parametrize("value", [True, 2.0, "2", None, float("nan")])
def test_sizes_are_ints(name, value):
    with pytest.raises(TypeError, match=rf"{name} must be an int, got {value!r}"):
        NetworkSpec(**{"scheme": "pre-ln", "num_layers": 2} | {name: value})


@pytest.mark.parametrize(
    ("typed", "meant"), [("he", "kaiming"), ("Kaiming", "kaiming"), ("torch_default", "torch-default")]
)
def test_the_init_somebody_meant(typed, meant):
    with pytest.raises(ValueError, match=rf"unknown init '{typed}'; did you mean '{meant}'\?"):
        NetworkSpec(scheme="pre-ln", num_layers=2, init=typed)


@pytest.mark.parametrize("name", [None, 3])
def test_scheme_and_init_are_names(name):
    with pytest.raises(TypeError, match="scheme must be a name"):
        NetworkSpec(scheme=name, num_layers=2)
    with pytest.raises(TypeError, match="init must be a name"):
        NetworkSpec(scheme="pre-ln", num_layers=2, init=name)
