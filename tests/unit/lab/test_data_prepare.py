"""Checks and standardization of data, by hand and against plain NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kilolayer.lab.prepare import (
    CLIP,
    ROWS_AT_ONCE,
    check_classes,
    check_labels,
    check_not_constant,
    check_values,
    count_classes,
    standardize,
)


# ---------------------------------------------------------------- standardization
def test_against_plain_numpy_over_several_chunks() -> None:
    rng = np.random.default_rng(0)
    x_train = (3 + rng.normal(size=(ROWS_AT_ONCE + 17, 4)) * [1, 2, 3, 4]).astype(np.float32)
    x_test = rng.normal(size=(5, 4)).astype(np.float32)
    got_train, got_test = standardize(x_train, x_test)
    mean, std = x_train.astype(float).mean(axis=0), x_train.astype(float).std(axis=0)
    np.testing.assert_allclose(got_train, (x_train - mean) / std, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got_test, (x_test - mean) / std, rtol=1e-5, atol=1e-6)
    assert got_train.dtype == got_test.dtype == np.float32
    assert got_train.flags.writeable
    assert got_train.flags.c_contiguous


def test_training_features_have_mean_0_and_std_1() -> None:
    x = np.random.default_rng(0).integers(0, 256, size=(500, 7)).astype(np.uint8)
    got, _ = standardize(x, x)
    np.testing.assert_allclose(got.mean(axis=0, dtype=float), 0, atol=1e-6)
    np.testing.assert_allclose(got.std(axis=0, dtype=float), 1, atol=1e-6)


def test_a_feature_that_hardly_varies_becomes_zero_in_training_and_test() -> None:
    # Range 255, so the least std is 1; a feature that alternates has half its height as std.
    alternate = np.arange(100) % 2
    x = np.stack([255.0 * alternate, 1.99 * alternate, 2.01 * alternate, np.full(100, 0.1)], axis=1)
    got_train, got_test = standardize(x, x + 7)
    assert np.abs(got_train).max(axis=0).tolist() == [1, 0, 1, 0]
    assert (got_test == 0).all(axis=0).tolist() == [False, True, False, True]


def test_values_are_cut_in_training_and_test_alike() -> None:
    x_train = np.zeros((1000, 1))
    x_train[0] = 1.0
    got_train, got_test = standardize(x_train, np.array([[1.0], [-1e3], [0.0]]))
    assert got_train.max() == CLIP
    assert got_test[:2].ravel().tolist() == [CLIP, -CLIP]
    assert got_test[2, 0] == got_train[1, 0]


def test_the_test_set_has_no_say_in_mean_and_std() -> None:
    x = np.random.default_rng(0).normal(size=(50, 3))
    alone, _ = standardize(x, x)
    beside, _ = standardize(x, 1e6 * x)
    np.testing.assert_array_equal(alone, beside)


@pytest.mark.parametrize("fill", [0, 0.1, -3e5])
def test_data_that_do_not_vary(fill: float) -> None:
    with pytest.raises(ValueError, match="no feature varies: all values lie near"):
        standardize(np.full((10, 3), fill), np.ones((2, 3)))


def test_features_that_differ_but_do_not_vary() -> None:
    with pytest.raises(ValueError, match="no feature varies"):
        standardize(np.tile([1.0, 2.0, 3.0], (10, 1)), np.ones((2, 3)))


@given(seed=st.integers(0, 2**32 - 1), shift=st.floats(-1e3, 1e3), scale=st.floats(1e-3, 1e3))
def test_units_do_not_matter(seed: int, shift: float, scale: float) -> None:
    x = np.random.default_rng(seed).normal(size=(30, 4))
    got, _ = standardize(shift + scale * x, x)
    np.testing.assert_allclose(got, standardize(x, x)[0], atol=1e-5)


# ---------------------------------------------------------------- values
def test_images_are_flattened() -> None:
    x = np.arange(24).reshape(2, 3, 4)
    np.testing.assert_array_equal(check_values(x, "x"), x.reshape(2, 12))


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float16, np.float64, bool])
def test_any_real_numbers_will_do(dtype: type) -> None:
    assert check_values(np.ones((2, 3), dtype), "x").dtype == dtype


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.ones(3), r"x has shape \(3,\); \(num_samples, num_features\) is wanted"),
        (np.ones((0, 3)), r"x is empty \(shape \(0, 3\)\)"),
        (np.ones((3, 0)), r"x is empty \(shape \(3, 0\)\)"),
        (np.ones((2, 2), complex), "x holds complex128 values; convert them to numbers"),
        (np.full((2, 2), "1"), "x holds <U1 values; convert them to numbers"),
        (np.array([[1, 2], [3, np.nan]]), r"1 values that are not finite, the first \(nan\) in sample 1, feature 1"),
        (np.array([[1, np.inf], [-np.inf, 4]]), r"2 values that are not finite, the first \(inf\) in sample 0"),
        (np.array([[1, 2], [3, -1e200]]), r"x has values as large as 1e\+200; rescale them"),
    ],
    ids=["dimensions", "no-samples", "no-features", "complex", "text", "nan", "inf", "huge"],
)
def test_bad_values(x: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_values(x, "x")


# ---------------------------------------------------------------- labels
@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.float32, bool])
def test_whole_numbers_become_int64(dtype: type) -> None:
    labels = check_labels(np.array([0, 1, 1], dtype), "y", 3)
    assert labels.dtype == np.int64
    assert labels.tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.eye(3), r"y has shape \(3, 3\); one number per sample is wanted: of one-hot take argmax"),
        (np.array([0, 1]), "y holds 2 labels for 3 samples"),
        (np.array([0, -1, 1]), "y holds the label -1; number the classes"),
        (np.array([0, 1.5, 1]), r"y holds the label 1\.5; classes are whole numbers"),
        (np.array([0, np.nan, 1]), "y holds the label nan"),
        (np.array([0, np.inf, 1]), "y holds the label inf"),
        (np.array([0, 1e30, 1]), r"y holds the label 1e\+30"),
        (np.array([0, 2**63, 1], np.uint64), "y holds the label 9223372036854775808"),
        (np.array(["cat", "dog", "cat"]), "y holds <U3 labels; number the classes"),
    ],
    ids=["one-hot", "count", "negative", "fraction", "nan", "inf", "huge", "huge-int", "text"],
)
def test_bad_labels(y: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_labels(y, "y", 3)


@pytest.mark.parametrize(
    ("y", "num_classes"),
    [
        (np.arange(100) % 10, 10),
        (np.array([0, 1]), 2),
        # Few samples may leave classes out.
        (np.array([0, 2, 5, 7, 9, 3, 2]), 10),
    ],
    ids=["all", "two", "few-samples"],
)
def test_classes_are_counted(y: np.ndarray, num_classes: int) -> None:
    assert count_classes(y, "y") == num_classes


@pytest.mark.parametrize(
    "y",
    [
        np.append(np.arange(1000) % 10, 17),
        np.append(np.arange(50) % 10, 255),
        1 + np.arange(200) % 10,
        np.array([0, 1, 2**40]),
    ],
    ids=["one-stray", "one-stray-of-few", "counted-from-one", "ids"],
)
def test_labels_out_of_range_show_as_gaps(y: np.ndarray) -> None:
    with pytest.raises(ValueError, match=rf"labels up to {y.max()}, but only .* is out of range, or renumber"):
        count_classes(y, "y")


def test_one_class_and_labels_beyond_the_last_class() -> None:
    check_not_constant(np.array([0, 1]), "y")
    with pytest.raises(ValueError, match=r"y holds one class only \(label 4\)"):
        check_not_constant(np.array([4, 4]), "y")
    check_classes(np.array([0, 9]), "y", 10)
    with pytest.raises(ValueError, match="y holds the label 10; the 10 classes are 0 to 9"):
        check_classes(np.array([0, 10]), "y", 10)
