"""Number of directions of a gradient: definition, collapse under random layers, sums over depth."""

import numpy as np
import pytest

from kilolayer.theory.directions import anchored_directions, anchors, collapsed, directions, scatter_below
from kilolayer.theory.pairs import SamplePairs


def test_directions_of_known_kernels():
    ones = np.ones((6, 6))
    assert directions(ones, ones) == pytest.approx(1)
    assert directions(np.eye(6), np.eye(6)) == pytest.approx(1 / 6)
    assert directions(np.eye(6), np.diag([1.0, 1, 0, 0, 0, 0])) == pytest.approx(1 / 2)
    assert directions(np.zeros((2, 2)), np.eye(2)) == 1


def test_a_sum_over_many_directions_scatters_less():
    """Relative variance of sum_ij K_ij <d_i, d_j> over n Gaussian units is 2 R / n."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(5, 5))
    kernel, gradient = rows @ rows.T, np.diag([3.0, 1, 1, 0.5, 0.1])
    units = np.sqrt(np.diag(gradient)) * rng.standard_normal((4000, 64, 5))
    sums = np.einsum("dni,ij,dnj->d", units, kernel, units)
    assert sums.var() / sums.mean() ** 2 == pytest.approx(2 * directions(kernel, gradient) / 64, rel=0.1)


@pytest.mark.parametrize("num_layers", [10, 40, 120])
def test_random_layers_collapse_directions_as_predicted(num_layers):
    """Products of random matrices, started with four directions alike."""
    width, start = 100, 4
    rng = np.random.default_rng(1)
    fractions = []
    for _ in range(150):
        gradient = np.eye(start)
        for _ in range(num_layers):
            root = np.linalg.cholesky(gradient)
            units = root @ rng.standard_normal((start, width)) / np.sqrt(width)
            gradient = units @ units.T
        fractions.append((gradient**2).sum() / np.trace(gradient) ** 2)
    # K = width active units: 2 / K of directed variance per layer.
    predicted = collapsed(1 / start, num_layers * 2 / width)
    assert predicted == pytest.approx(np.mean(fractions), rel=0.12)


def test_collapse_ends_in_one_direction():
    assert collapsed(0.1, 0.0) == pytest.approx(0.1)
    assert collapsed(0.1, 100.0) == pytest.approx(1)
    assert collapsed(1.0, 3.0) == 1


def test_anchors_span_the_depth():
    assert anchors(1) == [0]
    assert anchors(3) == [0, 1, 2]
    assert anchors(64)[0] == 0
    assert anchors(64)[-1] == 63


def test_anchored_directions_undo_what_lies_above():
    pairs = SamplePairs(3)
    ones, half = np.ones(6), pairs.pack(np.full((3, 3), 0.5) + 0.5 * np.eye(3))
    table = anchored_directions({0: half, 4: ones}, {0: ones, 4: ones}, gradient=ones, pairs=pairs)
    assert table[4][4] == pytest.approx(1)
    assert table[0][4] == pytest.approx(directions(pairs.unpack(half), np.ones((3, 3))))
    assert table[0][0] == pytest.approx(directions(np.ones((3, 3)), pairs.unpack(half)))
    assert 0 not in table[4]


def test_scatter_is_summed_from_the_head_down():
    table = {0: {0: 1.0, 2: 1.0}, 2: {2: 1.0}}
    between, own = scatter_below(table, [0.1, 0.2, 0.4], 0.05, collapses=True)
    np.testing.assert_allclose(between, [0.65, 0.45, 0.05])
    np.testing.assert_allclose(own, 1)


def test_without_collapse_directions_stay():
    table = {0: {0: 0.25, 2: 0.25}, 2: {2: 0.25}}
    still, _ = scatter_below(table, [1.0, 1.0, 1.0], 1.0, collapses=False)
    np.testing.assert_allclose(still, [0.75, 0.5, 0.25])
    falling, _ = scatter_below(table, [1.0, 1.0, 1.0], 1.0, collapses=True)
    assert (falling[:2] > still[:2] + 0.2).all()
