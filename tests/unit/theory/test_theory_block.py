"""Specs of blocks and heads: their operations in order, what they refuse."""

import pytest

from kilolayer.theory import BlockSpec, HeadSpec
from kilolayer.theory.block import Act, Linear, Norm, has_norms, is_homogeneous


def kinds(operations):
    return [type(one).__name__ for one in operations]


@pytest.mark.parametrize(
    ("placement", "expected"),
    [
        ("none", ["Linear", "Act", "Linear"]),
        ("pre", ["Norm", "Linear", "Act", "Linear"]),
        ("inner", ["Linear", "Act", "Norm", "Linear"]),
        ("end", ["Linear", "Act", "Linear", "Norm"]),
        ("post", ["Linear", "Act", "Linear"]),
        ("pre+end", ["Norm", "Linear", "Act", "Linear", "Norm"]),
    ],
)
def test_norms_stand_where_the_placement_says(placement, expected):
    block = BlockSpec(8, (0.1, 0.2), norm_placement=placement)
    assert kinds(block.branch) == expected
    assert block.has_post_norm == (placement == "post")


def test_hidden_width_and_input_activation():
    block = BlockSpec(8, (0.1, 0.2), hidden_width=32, input_activated=True)
    assert block.branch == (Act("relu", 8), Linear(0.1, 8, 32), Act("relu", 32), Linear(0.2, 32, 8))


def test_head_operations():
    assert kinds(HeadSpec(8, 3, 0.1, norm_kind="rms", input_activated=True).operations) == ["Norm", "Act", "Linear"]
    assert HeadSpec(8, 3, 0.1).operations == (Linear(0.1, 8, 3),)
    assert Norm("rms") in HeadSpec(8, 3, 0.1, norm_kind="rms").operations


def test_homogeneous_means_no_norm_and_no_saturation():
    plain, head = BlockSpec(8, (0.1,)), HeadSpec(8, 3, 0.1)
    assert is_homogeneous((plain,), head)
    assert not is_homogeneous((plain, BlockSpec(8, (0.1,), norm_placement="post")), head)
    assert not is_homogeneous((plain,), HeadSpec(8, 3, 0.1, norm_kind="layer"))
    assert not is_homogeneous((BlockSpec(8, (0.1, 0.1), activation="tanh"),), head)
    assert has_norms((plain, BlockSpec(8, (0.1,), norm_placement="end")))
    assert not has_norms((plain,))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"width": 0, "weight_stds": (1.0,)}, "width must be >= 1, got 0"),
        ({"width": 8, "weight_stds": (1.0,), "hidden_width": 0}, "hidden_width must be >= 1"),
        ({"width": 8, "weight_stds": ()}, "weight_stds is empty"),
        ({"width": 8, "weight_stds": (-1.0,)}, "finite and >= 0, got -1"),
        ({"width": 8, "weight_stds": (1.0,), "activation": "rleu"}, "did you mean 'relu'"),
        ({"width": 8, "weight_stds": (1.0,), "norm_placement": "pre+middle"}, "no slot 'middle'"),
        ({"width": 8, "weight_stds": (1.0,), "norm_kind": "group"}, "norm_kind 'group' is unknown"),
    ],
)
def test_bad_blocks_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        BlockSpec(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_outputs": 0, "weight_std": 1.0}, "num_outputs must be >= 1"),
        ({"num_outputs": 2, "weight_std": float("nan")}, "got nan"),
        ({"num_outputs": 2, "weight_std": 1.0, "norm_kind": "group"}, "norm_kind 'group'"),
    ],
)
def test_bad_heads_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        HeadSpec(8, **arguments)
