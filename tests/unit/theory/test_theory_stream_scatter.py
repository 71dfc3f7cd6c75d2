"""The scatter of the stream: what samples share, by mean field and by chance."""

import math

import numpy as np
import pytest

from kilolayer.theory import BlockSpec, uniform_gram
from kilolayer.theory.forward import forward_blocks
from kilolayer.theory.pairs import SamplePairs
from kilolayer.theory.stream_scatter import between_samples, carried, cosine_slope, stream_log_variances

WIDTH, BATCH = 48, 8
PAIRS = SamplePairs(2, BATCH)
STDS = (math.sqrt(2 / WIDTH), math.sqrt(1 / WIDTH))


def traces_of(num_blocks=1, cosine=0.0, **options):
    blocks = [BlockSpec(WIDTH, STDS, **options)] * num_blocks
    return list(forward_blocks(blocks, uniform_gram(2, cosine=cosine), PAIRS))


@pytest.mark.parametrize(
    ("options", "cosine", "expected"),
    [
        ({}, 0.0, 0.5),
        ({}, 1.0, 1.0),
        ({"activation": "identity"}, 0.3, 1.0),
        ({"norm_placement": "pre+inner"}, 0.0, 0.5 * math.pi / (math.pi - 1)),
        ({"norm_placement": "pre+inner", "norm_kind": "rms"}, 0.0, 0.5),
    ],
)
def test_slope_of_the_cosine_in_closed_form(options, cosine, expected):
    assert cosine_slope(traces_of(cosine=cosine, **options)[0], PAIRS) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("activation", ["relu", "tanh", "gelu"])
def test_slope_of_the_cosine_is_its_derivative(activation):
    def cosine_behind(cosine):
        trace = traces_of(cosine=cosine, activation=activation)[0]
        return PAIRS.mean_between(PAIRS.cosines(trace.branch.steps[-1].before.gram))

    numeric = (cosine_behind(0.401) - cosine_behind(0.399)) / 0.002
    assert cosine_slope(traces_of(cosine=0.4, activation=activation)[0], PAIRS) == pytest.approx(numeric, rel=0.01)


def test_covariance_between_samples_is_what_the_batch_has_beside_their_own():
    own, between = 0.3, 0.1
    batch = own / BATCH + (1 - 1 / BATCH) * between
    assert between_samples(batch, own, PAIRS) == pytest.approx(between)
    assert between_samples(0.01, 0.3, PAIRS) == 0


def test_a_norm_on_the_stream_forgets_and_a_norm_before_the_branch_dilutes():
    assert stream_log_variances(traces_of(3, norm_placement="post"), PAIRS)[1:] == [0, 0, 0]
    assert carried(traces_of()[0]) == pytest.approx(1)
    assert carried(traces_of(norm_placement="pre")[0]) == pytest.approx(0.5)
    assert stream_log_variances(traces_of(), PAIRS)[0] == pytest.approx(2 / WIDTH / BATCH)


@pytest.mark.parametrize("placement", ["none", "pre", "pre+inner"])
def test_scatter_of_drawn_stacks(placement):
    num_blocks, draws = 12, 600
    rng = np.random.default_rng(0)
    x = rng.normal(size=(draws, BATCH, WIDTH))
    for _ in range(num_blocks):
        first, last = (rng.normal(0, std, (draws, WIDTH, WIDTH)) for std in STDS)
        hidden = np.maximum((normalized(x) if "pre" in placement else x) @ first, 0)
        x = x + (normalized(hidden) if "inner" in placement else hidden) @ last
    drawn = np.log((x**2).mean((1, 2))).var()
    predicted = stream_log_variances(traces_of(num_blocks, norm_placement=placement), PAIRS)[-1]
    # The variance of 600 draws has an error of 6 %.
    assert predicted == pytest.approx(drawn, rel=0.2)


def normalized(x):
    centered = x - x.mean(-1, keepdims=True)
    return centered / np.sqrt((centered**2).mean(-1, keepdims=True))
