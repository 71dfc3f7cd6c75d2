"""Reading IDX files: what is read, and one clear line for each way a file can be wrong."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from data_files import draw_arrays, idx_bytes, write_folder
from hypothesis import given
from hypothesis import strategies as st

from kilolayer.lab.idx import IDX_FILES, find_idx, load_idx_folder, read_idx

IMAGES, LABELS = np.arange(24).reshape(2, 3, 4), np.array([7, 9])


def write(folder: Path, data: bytes) -> Path:
    path = folder / "file"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("array", [IMAGES, LABELS], ids=["images", "labels"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["raw", "gz"])
def test_round_trip(tmp_path: Path, array: np.ndarray, pack) -> None:
    read = read_idx(write(tmp_path, pack(idx_bytes(array))), dimensions=array.ndim)
    np.testing.assert_array_equal(read, array)
    assert read.dtype == np.uint8
    assert read.flags.writeable


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (idx_bytes(LABELS), "has magic number 2049, an IDX file of images has 2051: is it another file"),
        (b"PK\x03\x04 zip", "has magic number 1347093252, an IDX file of images has 2051"),
        (b"", r"ends inside its header \(0 of 16 bytes\)"),
        (idx_bytes(IMAGES)[:9], r"ends inside its header \(9 of 16 bytes\)"),
        (idx_bytes(IMAGES)[:-1], "is truncated: 23 bytes of images, its header announces 24"),
        (idx_bytes(IMAGES) + b"x", "is too long: 25 bytes of images, its header announces 24"),
        (idx_bytes(IMAGES[:0]), r"holds no images \(sizes 0 x 3 x 4\)"),
        (idx_bytes(IMAGES[:, :, :0]), r"holds no images \(sizes 2 x 3 x 0\)"),
        (gzip.compress(idx_bytes(IMAGES))[:-9], "is not a complete gzip file"),
        (gzip.compress(idx_bytes(IMAGES))[:-8] + bytes(8), r"is not a complete gzip file \(CRC check failed"),
        (b"\x1f\x8b garbage that is no stream", "is not a complete gzip file"),
    ],
    ids=[
        "labels-for-images", "zip", "nothing", "half-a-header", "truncated", "too-long", "no-images", "no-columns",
        "gzip-cut", "gzip-crc", "gzip-garbage",
    ],
)  # fmt: skip
def test_a_damaged_file_is_one_line(tmp_path: Path, data: bytes, message: str) -> None:
    path = write(tmp_path, data)
    with pytest.raises(ValueError, match=message) as caught:
        read_idx(path, dimensions=3)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


@given(data=st.binary(max_size=64), pack=st.booleans())
def test_garbage_is_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes, pack: bool) -> None:
    path = write(tmp_path_factory.mktemp("garbage"), gzip.compress(data) if pack else data)
    with pytest.raises(ValueError, match=str(path)):
        read_idx(path, dimensions=3)


@given(position=st.integers(0, 15), value=st.integers(0, 255))
def test_no_byte_of_the_header_may_differ(tmp_path_factory: pytest.TempPathFactory, position: int, value: int) -> None:
    good = idx_bytes(IMAGES)
    data = bytearray(good)
    data[position] = value
    path = write(tmp_path_factory.mktemp("header"), bytes(data))
    if data == good:
        np.testing.assert_array_equal(read_idx(path, dimensions=3), IMAGES)
    else:
        with pytest.raises(ValueError, match=str(path)):
            read_idx(path, dimensions=3)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_folder(tmp_path: Path, suffix: str) -> None:
    arrays = draw_arrays()
    samples = load_idx_folder(write_folder(tmp_path, arrays, suffix=suffix))
    for name, array in zip(IDX_FILES, samples, strict=True):
        np.testing.assert_array_equal(array, arrays[name])


def test_names_with_a_dot_are_found_and_raw_files_come_first(tmp_path: Path) -> None:
    name = IDX_FILES[0]
    assert find_idx(tmp_path, name) is None
    for found in ("train-images.idx3-ubyte.gz", "train-images.idx3-ubyte", f"{name}.gz", name):
        (tmp_path / found).write_bytes(b"")
        assert find_idx(tmp_path, name) == tmp_path / found


def test_missing_files_are_named(tmp_path: Path) -> None:
    arrays = draw_arrays()
    del arrays["train-labels-idx1-ubyte"], arrays["t10k-images-idx3-ubyte"]
    write_folder(tmp_path, arrays)
    message = r"has no train-labels-idx1-ubyte and no t10k-images-idx3-ubyte \(raw or \.gz\)"
    with pytest.raises(FileNotFoundError, match=message):
        load_idx_folder(tmp_path)


@pytest.mark.parametrize(
    ("name", "edit", "message"),
    [
        ("train-labels-idx1-ubyte", lambda labels: labels[:-1], "holds 59 labels for 60 images"),
        ("t10k-labels-idx1-ubyte", lambda labels: np.append(labels, 0), "holds 21 labels for 20 images"),
        ("t10k-images-idx3-ubyte", lambda images: images[:, :, 1:], "trains on images of 4 x 5 and tests on"),
    ],
    ids=["train-count", "test-count", "size"],
)
def test_files_that_do_not_belong_together(tmp_path: Path, name: str, edit, message: str) -> None:
    arrays = draw_arrays()
    arrays[name] = edit(arrays[name])
    with pytest.raises(ValueError, match=message):
        load_idx_folder(write_folder(tmp_path, arrays))
