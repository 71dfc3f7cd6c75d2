"""The data an experiment runs on: scikit-learn's digits, MNIST, Fashion-MNIST, or the user's own files."""

from __future__ import annotations

import os
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kilolayer.lab.download import SOURCES, locate
from kilolayer.lab.idx import load_idx_folder
from kilolayer.lab.prepare import (
    Samples,
    check_classes,
    check_labels,
    check_not_constant,
    check_values,
    count_classes,
    standardize,
)
from kilolayer.schemes.suggest import nearest_name

DATA_NAMES = ("digits", *SOURCES)
"""The data sets known by name."""
TEST_SHARE = 0.2
SPLIT_SEED = 0
NUM_CLASSES = 10
"""Of each data set known by name."""
ALIASES = {"fmnist": "fashion-mnist", "fashion": "fashion-mnist", "sklearn-digits": "digits"}
"""Other words for the names; they are suggested, not accepted."""
ARRAYS = ("x", "y", "x_test", "y_test")
"""What is read of an ``.npz`` file."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """A classification task, standardized.

    Shape:
        - ``x_train``, ``x_test``: ``(num_samples, num_features)``, float32
        - ``y_train``, ``y_test``: ``(num_samples,)``, int64 in ``0..num_classes - 1``
    """

    name: str
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    num_classes: int


def load_data(name_or_path: str | os.PathLike[str], *, folder: str | os.PathLike[str] | None = None) -> Dataset:
    """Load a data set by name, or from files.

    Every feature is standardized by the training samples, see :func:`kilolayer.lab.prepare.standardize`.

    Args:
        name_or_path: ``digits`` (scikit-learn's, needs the ``lab`` extra), ``mnist`` or ``fashion-mnist`` (found
            on this machine, else downloaded); a folder of IDX files; or an ``.npz`` file with ``x`` and ``y``,
            and optionally ``x_test`` and ``y_test``. Without a test set of its own, a fifth of the samples,
            always the same, is held out.
        folder: where to look first for the files of ``mnist`` or ``fashion-mnist``.

    Raises:
        TypeError: neither a name nor a path.
        FileNotFoundError: a file is missing, and could not be downloaded.
        ModuleNotFoundError: ``digits`` without scikit-learn.
        ValueError: an unknown name, or data that are damaged, empty, not finite or wrongly labeled.

    Examples:
        >>> data = load_data("digits")
        >>> data.x_train.shape, data.x_test.shape, data.num_classes
        ((1438, 64), (359, 64), 10)
    """
    if not isinstance(name_or_path, (str, os.PathLike)):
        raise TypeError(f"data are found by a name or a path, got {name_or_path!r}")
    name_or_path = os.fspath(name_or_path)
    folder = None if folder is None else Path(folder)
    if folder is not None and name_or_path not in SOURCES:
        raise ValueError(f"folder has no effect on {name_or_path!r}; it is for {' and '.join(SOURCES)}")
    if name_or_path == "digits":
        return _load_digits()
    if name_or_path in SOURCES:
        found = locate(name_or_path, folder=folder)
        return _build(name_or_path, load_idx_folder(found), origin=str(found), num_classes=NUM_CLASSES)
    path = Path(name_or_path).expanduser()
    if name_or_path and path.is_dir():
        return _build(name_or_path, load_idx_folder(path))
    if path.is_file():
        return _load_npz(path, name_or_path)
    raise _not_found(name_or_path)


def _not_found(name: str) -> Exception:
    known = f"{', '.join(DATA_NAMES)}, a folder of IDX files, or an .npz file"
    if os.sep in name or Path(name).suffix:
        if Path(name).exists():
            return FileNotFoundError(f"{name!r} is neither a file nor a folder; data can be {known}")
        return FileNotFoundError(f"there is no file or folder {name!r}; data can be {known}")
    nearest = nearest_name(name, DATA_NAMES, ALIASES)
    hint = f"did you mean {nearest!r}?" if nearest else f"data can be {known}"
    return ValueError(f"unknown data {name!r}; {hint}")


def _load_digits() -> Dataset:
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("the digits come with scikit-learn: pip install 'kilolayer[lab]'") from error
    x, y = load_digits(return_X_y=True)
    return _build("digits", _split(x, y), num_classes=NUM_CLASSES)


def _load_npz(path: Path, name: str) -> Dataset:
    arrays = _read_npz(path, name)
    if missing := [key for key in ("x", "y") if key not in arrays]:
        raise ValueError(
            f"{name} has no array {' and no array '.join(missing)} (it has {', '.join(arrays) or 'none'}); "
            "save them with numpy.savez(path, x=..., y=...)"
        )
    if ("x_test" in arrays) != ("y_test" in arrays):
        raise ValueError(f"{name} has only one of x_test and y_test; give both, or neither")
    if "x_test" in arrays:
        return _build(name, Samples(*(arrays[key] for key in ARRAYS)))
    # Checked before the split, so that errors count in the user's own order.
    x = check_values(arrays["x"], f"{name}: x")
    y = check_labels(arrays["y"], f"{name}: y", len(x))
    if len(x) < 2:
        raise ValueError(f"{name} holds one sample; two are the least, one of them to test on")
    check_not_constant(y, f"{name}: y")
    return _build(name, _split(x, y), num_classes=count_classes(y, f"{name}: y"))


def _read_npz(path: Path, name: str) -> dict[str, np.ndarray]:
    """The arrays of an archive; those that are not read stand empty under their names."""
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{name} is not a complete .npz file; save x and y with numpy.savez, or name a folder")
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {key: np.asarray(archive[key]) if key in ARRAYS else np.empty(0) for key in archive.files}
    # Zip, deflate and NumPy's header parser raise a dozen kinds of errors between them.
    except Exception as error:
        if "Object arrays" in str(error):
            raise ValueError(f"{name} holds an object array; save x and y as plain numbers") from error
        raise ValueError(f"{name} is damaged ({' '.join(str(error).split())}); save it again") from error


def _split(x: np.ndarray, y: np.ndarray) -> Samples:
    """Shuffle with a fixed seed and hold out a fifth, at least one sample."""
    order = np.random.default_rng(SPLIT_SEED).permutation(len(x))
    num_test = max(1, round(TEST_SHARE * len(x)))
    test, train = order[:num_test], order[num_test:]
    return Samples(x[train], y[train], x[test], y[test])


def _build(name: str, samples: Samples, *, origin: str | None = None, num_classes: int | None = None) -> Dataset:
    """Check everything and standardize; ``origin`` says in errors where the data are from."""
    x_name, y_name, x_test_name, y_test_name = (f"{origin or name}: {array}" for array in ARRAYS)
    x_train, x_test = check_values(samples.x_train, x_name), check_values(samples.x_test, x_test_name)
    if x_train.shape[1] != x_test.shape[1]:
        raise ValueError(f"{x_test_name} has {x_test.shape[1]} features per sample, x has {x_train.shape[1]}")
    y_train = check_labels(samples.y_train, y_name, len(x_train))
    y_test = check_labels(samples.y_test, y_test_name, len(x_test))
    check_not_constant(y_train, y_name)
    num_classes = num_classes or count_classes(y_train, y_name)
    check_classes(y_train, y_name, num_classes)
    check_classes(y_test, y_test_name, num_classes)
    try:
        x_train, x_test = standardize(x_train, x_test)
    except ValueError as error:
        raise ValueError(f"{x_name}: {error}") from error
    return Dataset(name, x_train, y_train, x_test, y_test, num_classes)
