"""The largest of many Gaussians."""

import numpy as np
import pytest

from kilolayer.theory.largest import effective_count, largest_of_tensors


def medians(draw, repeats=1000):
    rng = np.random.default_rng(0)
    return np.median([np.abs(draw(rng)).max() for _ in range(repeats)])


@pytest.mark.parametrize("count", [10, 1000, 30_000])
def test_one_tensor(count):
    # The Poisson limit needs many entries; the second decimal of few is off.
    found = largest_of_tensors(np.zeros(1), counts=np.array([float(count)]))
    assert found == pytest.approx(medians(lambda rng: rng.normal(size=count)), rel=0.04)


def test_tensors_of_several_sizes():
    sizes, counts = np.array([1.0, 2.0, 3.0]), np.array([4000, 500, 50])
    found = largest_of_tensors(np.log(sizes), counts=counts.astype(float))
    drawn = medians(lambda rng: np.concatenate([s * rng.normal(size=c) for s, c in zip(sizes, counts, strict=True)]))
    assert found == pytest.approx(drawn, rel=0.03)


def test_scale():
    one = largest_of_tensors(np.zeros(1), counts=np.array([100.0]))
    assert largest_of_tensors(np.array([300.0]), counts=np.array([100.0])) == pytest.approx(one * np.exp(300))
    assert largest_of_tensors(np.array([900.0]), counts=np.array([100.0])) == np.inf


@pytest.mark.parametrize("cosine", [0.0, 0.5, 0.9, 0.99])
def test_samples_that_are_alike_count_as_fewer(cosine):
    samples, units = 16, 200

    def draw(rng):
        shared = np.sqrt(cosine) * rng.normal(size=(1, units))
        return shared + np.sqrt(1 - cosine) * rng.normal(size=(samples, units))

    count = effective_count(samples, cosine)
    assert 1 <= count <= samples * 1.001
    found = largest_of_tensors(np.zeros(1), counts=np.array([units * count]))
    assert found == pytest.approx(medians(draw), rel=0.03)


def test_a_negative_cosine_counts_as_none():
    assert effective_count(8, -0.1) == effective_count(8, 0.0)


def test_no_entry_at_all():
    with pytest.raises(ValueError, match=r"at least one entry, got 0"):
        largest_of_tensors(np.zeros(2), counts=np.zeros(2))
