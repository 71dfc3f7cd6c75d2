"""Reading IDX files, the format of MNIST: a magic number, big-endian sizes, unsigned bytes."""

from __future__ import annotations

import gzip
import zlib
from math import prod
from pathlib import Path

import numpy as np

from kilolayer.lab.prepare import Samples

IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
"""The standard names, in the order ``x_train, y_train, x_test, y_test``; each may end in ``.gz``."""

# Two zero bytes, 0x08 for unsigned bytes, the number of dimensions.
MAGIC_BY_DIMENSIONS = {3: 0x00000803, 1: 0x00000801}
CONTENT_BY_DIMENSIONS = {3: "images", 1: "labels"}
GZIP_START = b"\x1f\x8b"


def load_idx_folder(folder: Path) -> Samples:
    """Read the four files of a folder.

    Returns:
        images of shape ``(num_samples, rows, columns)`` and labels of shape ``(num_samples,)``, uint8.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is damaged, or images and labels do not belong together.
    """
    paths = {name: find_idx(folder, name) for name in IDX_FILES}
    if missing := [name for name, path in paths.items() if path is None]:
        if len(missing) == len(IDX_FILES):
            raise FileNotFoundError(f"{folder} holds no IDX files; put {', '.join(IDX_FILES)} (raw or .gz) there")
        raise FileNotFoundError(f"{folder} has no {' and no '.join(missing)} (raw or .gz) beside the other IDX files")
    found = [path for path in paths.values() if path is not None]
    x_train, y_train, x_test, y_test = (
        read_idx(path, dimensions=3 if "images" in name else 1) for name, path in zip(IDX_FILES, found, strict=True)
    )
    for images, labels, path in ((x_train, y_train, found[1]), (x_test, y_test, found[3])):
        if len(images) != len(labels):
            raise ValueError(f"{path} holds {len(labels)} labels for {len(images)} images; take both from one source")
    if x_train.shape[1:] != x_test.shape[1:]:
        raise ValueError(
            f"{folder} trains on images of {_size(x_train)} and tests on images of {_size(x_test)}; "
            "take both from one source"
        )
    return Samples(x_train, y_train, x_test, y_test)


def find_idx(folder: Path, name: str) -> Path | None:
    """The file of a standard name in a folder, raw before compressed; ``None`` where there is none."""
    # Some tools unpack to "train-images.idx3-ubyte".
    dotted = name.replace("-idx", ".idx")
    candidates = (folder / f"{stem}{suffix}" for stem in (name, dotted) for suffix in ("", ".gz"))
    return next((path for path in candidates if path.is_file()), None)


def read_idx(path: Path, *, dimensions: int) -> np.ndarray:
    """Read one file of unsigned bytes, compressed or not.

    Args:
        path: the file.
        dimensions: 3 for images, 1 for labels.

    Returns:
        a writable uint8 array of that many dimensions.

    Raises:
        ValueError: wrong magic number, truncated, too long, empty, or a damaged gzip stream.
    """
    data = path.read_bytes()
    if data.startswith(GZIP_START):
        data = decompress(data, str(path))
    content, magic = CONTENT_BY_DIMENSIONS[dimensions], MAGIC_BY_DIMENSIONS[dimensions]
    header = 4 + 4 * dimensions
    found = int.from_bytes(data[:4], "big")
    if len(data) >= 4 and found != magic:
        raise ValueError(f"{path} has magic number {found}, an IDX file of {content} has {magic}: is it another file?")
    if len(data) < header:
        raise ValueError(f"{path} ends inside its header ({len(data)} of {header} bytes); fetch it again")
    shape = tuple(int.from_bytes(data[at : at + 4], "big") for at in range(4, header, 4))
    if prod(shape) == 0:
        raise ValueError(f"{path} holds no {content} (sizes {' x '.join(map(str, shape))}); fetch it again")
    if len(data) - header != prod(shape):
        fault = "truncated" if len(data) - header < prod(shape) else "too long"
        raise ValueError(
            f"{path} is {fault}: {len(data) - header} bytes of {content}, its header announces {prod(shape)}; "
            "fetch it again"
        )
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape).copy()


def decompress(data: bytes, name: str) -> bytes:
    """Unpack gzip data; ``name`` says in errors where they are from."""
    try:
        return gzip.decompress(data)
    except (EOFError, OSError, zlib.error) as error:
        raise ValueError(f"{name} is not a complete gzip file ({error}); fetch it again") from error


def _size(images: np.ndarray) -> str:
    return " x ".join(map(str, images.shape[1:]))
