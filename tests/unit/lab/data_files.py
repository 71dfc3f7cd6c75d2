"""Small IDX files for the tests of data."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

from kilolayer.lab.idx import IDX_FILES


def idx_bytes(array: np.ndarray) -> bytes:
    """An array of unsigned bytes as the content of an IDX file."""
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


def draw_arrays(num_train: int = 60, num_test: int = 20, *, num_classes: int = 3) -> dict[str, np.ndarray]:
    """Random images of 4 x 5 and labels that count round, by the standard file names."""
    rng = np.random.default_rng(0)
    arrays = {}
    for images, labels, count in zip(IDX_FILES[::2], IDX_FILES[1::2], (num_train, num_test), strict=True):
        arrays[images] = rng.integers(0, 256, size=(count, 4, 5))
        arrays[labels] = np.arange(count) % num_classes
    return arrays


def write_folder(folder: Path, arrays: dict[str, np.ndarray] | None = None, *, suffix: str = "") -> Path:
    """Write a folder of IDX files, compressed where the suffix says so."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in (draw_arrays() if arrays is None else arrays).items():
        data = idx_bytes(array)
        (folder / (name + suffix)).write_bytes(gzip.compress(data) if suffix == ".gz" else data)
    return folder
