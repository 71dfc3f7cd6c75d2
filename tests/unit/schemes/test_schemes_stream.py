"""The variance of the stream through a linear stack."""

import math

import pytest

from kilolayer.schemes import Depth, get_scheme, log_stream_variances


def variances(name, num_layers, **options):
    depth = Depth(encoder_layers=num_layers)
    return [math.exp(one) for one in log_stream_variances(get_scheme(name), depth, **options)]


def test_by_hand():
    assert variances("residual", 2) == pytest.approx([2, 4, 8, 16])
    assert variances("pre-ln", 2) == pytest.approx([2, 3, 4, 5])
    assert variances("pre-ln-scaled", 2) == pytest.approx([1.25, 1.5, 1.75, 2.0])
    assert variances("layernorm-scaling", 2) == pytest.approx([2, 3, 3.5, 4])
    assert variances("mix-ln", 4) == pytest.approx([1, 1, 2, 3, 4, 5, 6, 7])
    assert variances("sub-ln", 1) == pytest.approx([1 + math.log(2), 1 + 2 * math.log(2)])
    assert variances("t-fixup", 1) == pytest.approx([1 + 0.67**4, (1 + 0.67**4) ** 2])


def test_a_larger_input_reaches_the_branch_unless_a_norm_stands_before_it():
    assert variances("residual", 1, input_variance=3.0) == pytest.approx([6, 12])
    assert variances("pre-ln", 1, input_variance=3.0) == pytest.approx([4, 5])
    assert variances("end-ln", 1, input_variance=3.0) == pytest.approx([4, 5])
    assert variances("post-ln", 1, input_variance=3.0) == pytest.approx([1, 1])


def test_a_silent_branch_leaves_the_stream_as_it_was():
    for name in ("rezero", "skipinit", "fixup"):
        assert variances(name, 3, input_variance=2.0) == pytest.approx([2.0] * 6)


def test_ten_thousand_branches_do_not_overflow():
    last = log_stream_variances(get_scheme("residual"), Depth(encoder_layers=5000))[-1]
    assert last == pytest.approx(10_000 * math.log(2))
    with pytest.raises(OverflowError):
        math.exp(last)


@pytest.mark.parametrize("input_variance", [0.0, -1.0, math.inf, math.nan])
def test_an_input_without_a_logarithm_is_refused(input_variance):
    with pytest.raises(ValueError, match="input_variance must be positive and finite"):
        variances("residual", 1, input_variance=input_variance)
