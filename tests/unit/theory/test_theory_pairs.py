"""Packed symmetric matrices and the Gram matrices predictions start from."""

import numpy as np
import pytest

from kilolayer.theory import projection_gram, uniform_gram
from kilolayer.theory.pairs import SamplePairs, checked_gram


@pytest.fixture
def matrix():
    rows = np.random.default_rng(0).normal(size=(5, 7))
    return rows @ rows.T


def test_packing_is_undone(matrix):
    pairs = SamplePairs(5)
    np.testing.assert_array_equal(pairs.unpack(pairs.pack(matrix)), matrix)
    np.testing.assert_array_equal(pairs.diagonal(pairs.pack(matrix)), np.diag(matrix))


def test_averages_over_pairs(matrix):
    pairs = SamplePairs(5)
    packed = pairs.pack(matrix)
    assert pairs.batch_mean(packed) == pytest.approx(matrix.mean())
    off = matrix[~np.eye(5, dtype=bool)]
    assert pairs.mean_between(packed) == pytest.approx(off.mean())
    np.testing.assert_allclose(pairs.unpack(pairs.outer(np.arange(5.0))), np.outer(np.arange(5), np.arange(5)))


def test_a_part_of_a_batch_weighs_the_diagonal_as_the_whole_does():
    """A matrix with one value on the diagonal and one off it has the same mean whatever the part."""
    gram = uniform_gram(40, second_moment=3.0, cosine=0.2)
    whole = SamplePairs(40).batch_mean(SamplePairs(40).pack(gram))
    part = SamplePairs(10, 40).batch_mean(SamplePairs(10).pack(gram[:10, :10]))
    assert part == pytest.approx(whole)


def test_centering_removes_the_mean_over_the_batch(matrix):
    centering = np.eye(5) - 1 / 5
    np.testing.assert_allclose(SamplePairs(5).centered(matrix), centering @ matrix @ centering, atol=1e-12)


def test_cosines_lie_in_range_and_are_one_on_the_diagonal(matrix):
    pairs = SamplePairs(5)
    cosines = pairs.cosines(pairs.pack(matrix))
    np.testing.assert_array_equal(pairs.diagonal(cosines), 1)
    assert np.abs(cosines).max() <= 1


def test_projection_gram_is_the_covariance_of_a_random_projection():
    rng = np.random.default_rng(1)
    inputs = rng.normal(size=(4, 9))
    units = inputs @ rng.normal(0, 0.5, (9, 100_000))
    measured = units @ units.T / 100_000
    # Relative standard error of a variance: sqrt(2 / 100,000) = 0.0045.
    np.testing.assert_allclose(measured, projection_gram(inputs, 0.5), atol=0.02 * np.abs(measured).max())


@pytest.mark.parametrize(
    ("gram", "message"),
    [
        (np.ones((2, 3)), r"square matrix .* got shape \(2, 3\)"),
        (np.array([[1.0, 0.5], [0.1, 1.0]]), "finite and symmetric"),
        (np.array([[np.nan, 0.0], [0.0, 1.0]]), "finite and symmetric"),
        (np.zeros((2, 2)), "not all zero"),
    ],
)
def test_what_is_no_gram_matrix_is_refused(gram, message):
    with pytest.raises(ValueError, match=message):
        checked_gram(gram)


def test_bad_sizes_are_refused():
    with pytest.raises(ValueError, match="at least 2"):
        SamplePairs(1)
    with pytest.raises(ValueError, match="smaller than the 4 samples"):
        SamplePairs(4, 3)
    with pytest.raises(ValueError, match="finite array"):
        projection_gram(np.array([[np.inf, 1.0]]), 1.0)
