"""Asking a scheme for a branch."""

import pytest

from kilolayer.schemes import Depth, get_scheme


def test_branches_are_counted_through_the_stack():
    scheme = get_scheme("layernorm-scaling")
    depth = Depth(encoder_layers=4)
    assert [scheme.at(depth, index).norm_output_scale for index in (0, 1, 6, 7)] == [1.0, 1.0, 0.5, 0.5]


@pytest.mark.parametrize("branch_index", [-1, 4])
def test_a_branch_outside_the_stack_is_refused(branch_index):
    with pytest.raises(IndexError, match=f"branch_index {branch_index} is out of range: the encoder has 4 branches"):
        get_scheme("pre-ln").at(Depth(encoder_layers=2), branch_index)


def test_a_stack_without_layers_has_no_branch():
    with pytest.raises(IndexError, match="the decoder has 0 branches"):
        get_scheme("pre-ln").at(Depth(encoder_layers=2), 0, "decoder")


def test_a_scheme_without_profile_refuses_one():
    with pytest.raises(ValueError, match="'deepnorm' needs no profiling pass"):
        get_scheme("deepnorm").with_profile({"encoder": [1.0]})


def test_embeddings_and_head_are_left_alone_unless_a_scheme_says_otherwise():
    depth = Depth(encoder_layers=2)
    scheme = get_scheme("deepnorm")
    assert scheme.embedding_gain(depth, "encoder") == 1.0
    assert scheme.head_gain == 1.0


@pytest.mark.parametrize("index", [True, 1.0, "1", None])
def test_a_branch_is_counted_in_ints(index):
    with pytest.raises(TypeError, match=rf"branch_index must be an int, got {index!r}"):
        get_scheme("deepnorm").at(Depth(encoder_layers=4), index)


def test_a_depth_is_a_depth():
    with pytest.raises(TypeError, match=r"depth must be a Depth, got 4; use Depth\(encoder_layers=\.\.\.\)"):
        get_scheme("deepnorm").at(4, 0)
