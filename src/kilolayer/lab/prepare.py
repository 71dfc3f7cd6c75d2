"""What every data set goes through: checks, labels as class numbers, standardization."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

CLIP = 10.0
"""Standardized values are cut to this many standard deviations."""
LEAST_STD = 1 / 255
"""Features whose std is below this share of the data's range are noise of the last bit, and set to 0."""
LARGEST = 1e100
"""Beyond it the square of a value nears the end of float64."""
ROWS_AT_ONCE = 4096


class Samples(NamedTuple):
    """Inputs and labels as they were found, to train on and to test on."""

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


def check_values(x: np.ndarray, name: str) -> np.ndarray:
    """Samples as a ``(num_samples, num_features)`` array of finite numbers; further axes are flattened.

    Raises:
        ValueError: not numbers, not at least two axes, empty, or a value that is not finite.
    """
    if x.dtype.kind not in "biuf":
        raise ValueError(f"{name} holds {x.dtype} values; convert them to numbers")
    if x.ndim < 2:
        raise ValueError(f"{name} has shape {x.shape}; (num_samples, num_features) is wanted, or images")
    if x.size == 0:
        raise ValueError(f"{name} is empty (shape {x.shape})")
    x = x.reshape(len(x), -1)
    if x.dtype.kind == "f":
        finite = np.isfinite(x)
        if not finite.all():
            sample, feature = np.argwhere(~finite)[0]
            raise ValueError(
                f"{name} has {x.size - np.count_nonzero(finite)} values that are not finite, the first "
                f"({x[sample, feature]}) in sample {sample}, feature {feature}; remove or replace them"
            )
        if (largest := max(-float(x.min()), float(x.max()))) > LARGEST:
            raise ValueError(f"{name} has values as large as {largest:.3g}; rescale them below {LARGEST:g}")
    return x


def check_labels(y: np.ndarray, name: str, num_samples: int) -> np.ndarray:
    """Labels as int64 class numbers.

    Raises:
        ValueError: another shape than ``(num_samples,)``, not whole numbers, or negative.
    """
    if y.ndim != 1:
        raise ValueError(f"{name} has shape {y.shape}; one number per sample is wanted: of one-hot take argmax")
    if len(y) != num_samples:
        raise ValueError(f"{name} holds {len(y)} labels for {num_samples} samples; they must pair up")
    if y.dtype.kind not in "biuf":
        raise ValueError(f"{name} holds {y.dtype} labels; number the classes 0, 1, ...")
    if y.dtype.kind == "f" and (broken := y[~(np.isfinite(y) & (np.floor(y) == y))]).size:
        raise ValueError(f"{name} holds the label {broken[0]}; classes are whole numbers 0, 1, ...")
    for bad in (y.min(), y.max()):
        if bad < 0 or bad > np.iinfo(np.int64).max:
            raise ValueError(f"{name} holds the label {bad}; number the classes 0, 1, ...")
    return y.astype(np.int64)


def count_classes(y: np.ndarray, name: str) -> int:
    """The number of classes of labels from :func:`check_labels`: the largest plus one.

    A few samples may leave classes out by chance. Where there are ten samples and more per class, or most
    numbers up to the largest label never occur, a label is out of range or the classes are misnumbered.

    Raises:
        ValueError: such gaps.
    """
    seen = np.unique(y)
    num_classes = int(seen[-1]) + 1
    num_absent = num_classes - len(seen)
    if num_absent and (len(y) >= 10 * num_classes or num_absent > len(seen)):
        raise ValueError(
            f"{name} has labels up to {seen[-1]}, but only {len(seen)} of the classes 0 to {seen[-1]} occur: a label "
            "is out of range, or renumber them with numpy.unique(y, return_inverse=True)[1]"
        )
    return num_classes


def check_classes(y: np.ndarray, name: str, num_classes: int) -> None:
    """Refuse labels beyond ``num_classes - 1``."""
    if y.max() >= num_classes:
        raise ValueError(f"{name} holds the label {y.max()}; the {num_classes} classes are 0 to {num_classes - 1}")


def check_not_constant(y: np.ndarray, name: str) -> None:
    """Refuse labels that are all the same."""
    if y.min() == y.max():
        raise ValueError(f"{name} holds one class only (label {y[0]}); there is nothing to tell apart")


def standardize(x_train: np.ndarray, x_test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Features at mean 0 and variance 1 over the training samples, float32.

    ``(x - mean) / std`` with the training set's mean and std per feature, cut to +-10; a feature whose std is
    below 1/255 of the range of all training values becomes 0.

    Shape:
        - both, in and out: ``(num_samples, num_features)``

    Raises:
        ValueError: no feature varies enough.
    """
    value_range = float(x_train.max()) - float(x_train.min())
    mean = x_train.mean(axis=0, dtype=np.float64)
    std = _std(x_train, mean)
    kept = std >= LEAST_STD * value_range
    if value_range == 0 or not kept.any():
        raise ValueError(f"no feature varies: all values lie near {mean.mean():.6g}, nothing can be learned")
    factor = np.where(kept, 1 / np.where(kept, std, 1.0), 0.0)
    return _apply(x_train, mean, factor), _apply(x_test, mean, factor)


def _std(x: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Standard deviation per feature in float64, without a float64 copy of all the data."""
    total = np.zeros_like(mean)
    for start in range(0, len(x), ROWS_AT_ONCE):
        centered = x[start : start + ROWS_AT_ONCE] - mean
        total += np.einsum("sf,sf->f", centered, centered)
    return np.asarray(np.sqrt(total / len(x)))


def _apply(x: np.ndarray, mean: np.ndarray, factor: np.ndarray) -> np.ndarray:
    out = np.empty(x.shape, np.float32)
    for start in range(0, len(x), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        scaled = (x[rows] - mean) * factor
        out[rows] = np.clip(scaled, -CLIP, CLIP, out=scaled)
    return out
