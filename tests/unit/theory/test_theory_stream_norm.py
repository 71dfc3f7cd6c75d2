"""What norms on the stream change about a gradient at finite width."""

import math

import numpy as np
import pytest

from kilolayer.theory import BlockSpec, NetworkSpec, predict_scheme, uniform_gram
from kilolayer.theory.forward import forward_blocks
from kilolayer.theory.pairs import SamplePairs
from kilolayer.theory.stream_norm import Removable, StreamState, stream_states
from kilolayer.theory.stream_scatter import stream_log_variances

WIDTH = 50
PAIRS = SamplePairs(2, 8)


def traces_of(placement, num_blocks=1, norm_kind="layer"):
    stds = (math.sqrt(2 / WIDTH), math.sqrt(1 / WIDTH))
    block = BlockSpec(WIDTH, stds, norm_placement=placement, norm_kind=norm_kind)
    return list(forward_blocks([block] * num_blocks, uniform_gram(2), PAIRS))


def states_of(traces):
    return stream_states(traces, stream_log_variances(traces, PAIRS), PAIRS)


@pytest.mark.parametrize(
    ("placement", "norm_kind", "mean"), [("post", "layer", 0), ("post", "rms", 1), ("pre", "layer", 1)]
)
def test_states_start_at_gaussian_inputs_and_end_at_a_norm(placement, norm_kind, mean):
    first, second = states_of(traces_of(placement, 2, norm_kind))
    assert (first.log_variance, first.mean) == (2 / WIDTH, 1)
    assert second.mean == pytest.approx(mean)
    assert (second.log_variance == 0) == (placement == "post")
    assert second.log_covariance <= second.log_variance


@pytest.mark.parametrize(("norm_kind", "lost"), [("layer", 1.5), ("rms", 1)])
def test_a_random_gradient_loses_directions_in_the_first_norm_only(norm_kind, lost):
    # LayerNorm: the sum (1), and the mean but for the part 1/2 that the branch brings into the sum.
    trace = traces_of("post", norm_kind=norm_kind)[0]
    removable, settled = Removable(), StreamState(0.0, 0.0, 0.0)
    at_top = removable.pass_norm(trace, settled, overlap=trace.unit_log_variance)
    assert WIDTH * at_top == pytest.approx(-lost)
    removable.pass_sum(trace, 0.5)
    assert WIDTH * removable.pass_norm(trace, settled, overlap=trace.unit_log_variance) == pytest.approx(0)


def test_inputs_of_many_sizes_make_the_mean_gradient_larger():
    # E[1/s^2] and the mean of the inputs: (2 + 1 - 1/2) / n in the last block before them, half of it its branch's.
    trace = traces_of("post")[0]
    removable = Removable(along_stream=0.0, along_mean=0.5)
    found = removable.pass_norm(trace, StreamState(2 / WIDTH, 0.0, 1.0), overlap=trace.unit_log_variance)
    assert WIDTH * found == pytest.approx(2.5)


def test_batch_norms_have_a_theory_of_their_own():
    assert Removable().pass_norm(traces_of("post", norm_kind="batch")[0], StreamState(0.1, 0.0, 1.0), overlap=0.0) == 0


def test_norms_inside_a_branch_remove_nothing_from_the_skip():
    removable, trace = Removable(), traces_of("pre")[0]
    removable.pass_sum(trace, 0.5)
    assert (removable.along_stream, removable.along_mean) == pytest.approx((0.5, 0.5))
    removable.pass_sum(traces_of("none")[0], 0.5)
    assert (removable.along_stream, removable.along_mean) == pytest.approx((0.5, 0.75))


def test_a_gradient_through_one_layer_norm():
    rng = np.random.default_rng(0)
    x, grad = rng.normal(size=(2, 200_000, WIDTH))
    centered = x - x.mean(-1, keepdims=True)
    size = np.sqrt((centered**2).mean(-1, keepdims=True))
    y = centered / size
    below = (grad - grad.mean(-1, keepdims=True) - y * (grad * y).mean(-1, keepdims=True)) / size
    # U = 2/n, M = m = a = 1: the two directions cost 2/n, sizes and the mean of the inputs give 3/n.
    assert WIDTH * ((below**2).mean() - 1) == pytest.approx(2 + 1 - 1 - 1, abs=0.3)


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_a_quiet_post_norm_stack_shows_both_ends_alone(norm):
    found = predict_scheme(NetworkSpec(scheme="deepnorm", num_layers=200, width=WIDTH, norm=norm))
    lost = 2 if norm == "layer" else 1
    assert found.gradient.median[150] == pytest.approx(1 - 0.5 * lost / WIDTH, abs=0.002)
    assert found.gradient.median[0] > found.gradient.median[1] + 0.01
