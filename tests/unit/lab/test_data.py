"""Loading data by name and by path: the right arrays, or one clear line."""

from __future__ import annotations

import builtins
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from data_files import draw_arrays, write_folder
from hypothesis import given
from hypothesis import strategies as st

from kilolayer.lab.data import DATA_NAMES, Dataset, load_data

MNIST = Path(__file__).parents[4] / "shared" / "data" / "mnist"
needs_mnist = pytest.mark.skipif(not MNIST.is_dir(), reason="needs the real MNIST in ../shared/data/mnist")


def draw(num_samples: int = 100, num_classes: int = 4) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {"x": rng.normal(size=(num_samples, 6)), "y": np.arange(num_samples) % num_classes}


def save(folder: Path, **arrays: np.ndarray) -> str:
    path = folder / "data.npz"
    np.savez(path, **arrays)
    return str(path)


def load_or_error(path: str) -> Dataset | str:
    try:
        return load_data(path)
    except ValueError as error:
        return str(error)


def check_sound(data: Dataset) -> None:
    """What every data set promises."""
    for x, y in ((data.x_train, data.y_train), (data.x_test, data.y_test)):
        assert x.dtype == np.float32
        assert y.dtype == np.int64
        assert x.shape == (len(y), data.x_train.shape[1])
        assert np.abs(x).max() <= 10
        assert y.min() >= 0
        assert y.max() < data.num_classes
        assert x.flags.writeable
        assert y.flags.writeable


# ---------------------------------------------------------------- by name
def test_digits() -> None:
    data = load_data("digits")
    check_sound(data)
    assert (data.name, data.num_classes) == ("digits", 10)
    assert (data.x_train.shape, data.x_test.shape) == ((1438, 64), (359, 64))
    assert np.bincount(data.y_test).min() >= 20


def test_digits_are_split_the_same_way_every_time() -> None:
    first, second = load_data("digits"), load_data("digits")
    np.testing.assert_array_equal(first.x_train, second.x_train)
    np.testing.assert_array_equal(first.y_test, second.y_test)


def test_digits_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def refuse(name: str, *rest, **options):
        if name.startswith("sklearn"):
            raise ModuleNotFoundError(f"No module named {name!r}")
        return original(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'kilolayer\[lab\]'"):
        load_data("digits")


@needs_mnist
@pytest.mark.parametrize("by_name", [True, False], ids=["name-and-folder", "path"])
def test_the_real_mnist(by_name: bool) -> None:
    data = load_data("mnist", folder=MNIST) if by_name else load_data(str(MNIST))
    check_sound(data)
    assert data.name == ("mnist" if by_name else str(MNIST))
    assert (data.x_train.shape, data.x_test.shape, data.num_classes) == ((60000, 784), (10000, 784), 10)
    assert data.y_train[:8].tolist() == [5, 0, 4, 1, 9, 2, 1, 3]
    assert data.y_test[:8].tolist() == [7, 2, 1, 0, 4, 1, 4, 9]
    varying = np.abs(data.x_train).max(axis=0) > 0
    assert 600 < varying.sum() < 717  # 717 pixels are ever lit; the rarest are below the least std
    np.testing.assert_allclose(data.x_train[:, varying].mean(axis=0, dtype=float), 0, atol=0.03)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_named_data_have_ten_classes(name: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path, draw_arrays(num_classes=3), suffix=".gz")
    data = load_data(name, folder=folder)
    check_sound(data)
    assert (data.name, data.num_classes) == (name, 10)
    write_folder(tmp_path / "eleven", draw_arrays(num_classes=11))
    with pytest.raises(ValueError, match=r"eleven: y holds the label 10; the 10 classes are 0 to 9"):
        load_data(name, folder=tmp_path / "eleven")


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("minst", ValueError, "unknown data 'minst'; did you mean 'mnist'"),
        ("MNIST", ValueError, "did you mean 'mnist'"),
        ("fashionmnist", ValueError, "did you mean 'fashion-mnist'"),
        ("cifar", ValueError, "unknown data 'cifar'; data can be digits, mnist, fashion-mnist, a folder"),
        ("", ValueError, "unknown data ''"),
        ("nowhere.npz", FileNotFoundError, r"there is no file or folder 'nowhere\.npz'; data can be digits"),
        ("/nowhere/at all", FileNotFoundError, "there is no file or folder '/nowhere/at all'"),
    ],
)
def test_unknown_data(name: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        load_data(name)


@pytest.mark.parametrize("name", ["digits", "somewhere/else"])
def test_a_folder_without_effect_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"folder has no effect on '{name}'; it is for mnist and fashion-mnist"):
        load_data(name, folder=tmp_path)


def test_loading_needs_no_torch() -> None:
    code = "import sys, kilolayer.lab.data; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_names() -> None:
    assert DATA_NAMES == ("digits", "mnist", "fashion-mnist")


# ---------------------------------------------------------------- folders
def test_a_folder_of_idx_files(tmp_path: Path) -> None:
    data = load_data(str(write_folder(tmp_path)))
    check_sound(data)
    assert (data.name, data.num_classes, data.x_train.shape) == (str(tmp_path), 3, (60, 20))


def test_a_folder_in_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write_folder(tmp_path / "mine")
    assert load_data("~/mine").num_classes == 3


def test_a_folder_with_nothing_in_it(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"holds no IDX files; put train-images-idx3-ubyte, .* \(raw or \.gz\) there"
    ):
        load_data(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "label", "message"),
    [
        ("train-labels-idx1-ubyte", 200, "y has labels up to 200, but only 4 of the classes"),
        ("t10k-labels-idx1-ubyte", 3, "y_test holds the label 3; the 3 classes are 0 to 2"),
    ],
)
def test_idx_labels_out_of_range(tmp_path: Path, name: str, label: int, message: str) -> None:
    arrays = draw_arrays()
    arrays[name][5] = label
    with pytest.raises(ValueError, match=message):
        load_data(str(write_folder(tmp_path, arrays)))


# ---------------------------------------------------------------- npz
def test_an_npz_is_split_four_to_one(tmp_path: Path) -> None:
    arrays = draw()
    path = save(tmp_path, **arrays)
    data = load_data(path)
    check_sound(data)
    assert (data.name, data.num_classes, len(data.x_train), len(data.x_test)) == (path, 4, 80, 20)
    # Every sample is there once, beside its own label.
    mean, std = data.x_train.mean(axis=0), data.x_train.std(axis=0)
    np.testing.assert_allclose(mean, 0, atol=1e-6)
    np.testing.assert_allclose(std, 1, atol=1e-5)
    assert np.bincount(np.concatenate([data.y_train, data.y_test])).tolist() == [25] * 4
    np.testing.assert_array_equal(load_data(path).x_test, data.x_test)


def test_samples_keep_their_labels(tmp_path: Path) -> None:
    y = np.arange(100) % 4
    data = load_data(save(tmp_path, x=np.stack([y, np.arange(100)], axis=1), y=y))
    for x, labels in ((data.x_train, data.y_train), (data.x_test, data.y_test)):
        assert np.corrcoef(x[:, 0], labels)[0, 1] > 0.999


def test_an_npz_with_a_test_set_of_its_own(tmp_path: Path) -> None:
    arrays = draw()
    x_test = arrays["x"][:7].reshape(7, 2, 3)
    data = load_data(save(tmp_path, **arrays, x_test=x_test, y_test=arrays["y"][:7], note=np.array(["any"])))
    check_sound(data)
    assert (len(data.x_train), len(data.x_test)) == (100, 7)
    np.testing.assert_array_equal(data.x_test, data.x_train[:7])
    np.testing.assert_array_equal(data.y_test, arrays["y"][:7])


def test_a_class_that_falls_into_the_test_part_counts(tmp_path: Path) -> None:
    arrays = draw(num_samples=20, num_classes=2)
    seen = set()
    for index in range(20):
        y = arrays["y"].copy()
        y[index] = 2
        data = load_data(save(tmp_path, x=arrays["x"], y=y))
        seen.add(2 in data.y_test)
        assert data.num_classes == 3
    assert seen == {True, False}


NPZ_FAULTS = {
    "no-y": ({"y": None}, r"has no array y \(it has x\); save them with numpy\.savez"),
    "no-x": ({"x": None}, r"has no array x \(it has y\)"),
    "other-names": ({"x": None, "y": None, "inputs": np.ones(3)}, r"no array x and no array y \(it has inputs\)"),
    "half-a-test-set": ({"x_test": np.ones((2, 6))}, "only one of x_test and y_test"),
    "nan": ({"x": np.full((100, 6), np.nan)}, "x has 600 values that are not finite"),
    "test-inf": ({"x_test": np.full((4, 6), np.inf), "y_test": np.arange(4)}, "x_test has 24 values that are not"),
    "test-features": ({"x_test": np.ones((4, 5)), "y_test": np.arange(4)}, "x_test has 5 features per sample, x has 6"),
    "test-label": ({"x_test": np.ones((4, 6)), "y_test": np.array([0, 1, 2, 4])}, "y_test holds the label 4; the 4"),
    "test-empty": ({"x_test": np.ones((0, 6)), "y_test": np.array([], int)}, "x_test is empty"),
    "empty": ({"x": np.ones((0, 6)), "y": np.array([], int)}, "x is empty"),
    "one-sample": ({"x": np.ones((1, 6)), "y": np.array([0])}, "holds one sample"),
    "flat": ({"x": np.ones(100)}, r"x has shape \(100,\)"),
    "scalar": ({"x": np.array(3.0)}, r"x has shape \(\)"),
    "count": ({"y": np.arange(99) % 4}, "y holds 99 labels for 100 samples"),
    "negative": ({"y": np.arange(100) % 4 - 1}, "y holds the label -1"),
    "fraction": ({"y": np.linspace(0, 3, 100)}, r"y holds the label 0\.03"),
    "stray": ({"y": np.append(np.arange(99) % 4, 99)}, "y has labels up to 99, but only 5 of the classes 0 to 99"),
    "one-class": ({"y": np.zeros(100, int)}, r"y holds one class only \(label 0\)"),
    "one-class-not-the-first": ({"y": np.full(100, 3)}, r"y holds one class only \(label 3\)"),
    "constant": ({"x": np.full((100, 6), 2.0)}, "x: no feature varies"),
    "objects": ({"y": np.array([0, None] * 50, dtype=object)}, "holds an object array; save x and y as plain numbers"),
    "text": ({"y": np.array(["a", "b"] * 50)}, "y holds <U1 labels"),
}  # fmt: skip


@pytest.mark.parametrize("fault", NPZ_FAULTS)
def test_a_faulty_npz_is_one_line(tmp_path: Path, fault: str) -> None:
    edits, message = NPZ_FAULTS[fault]
    arrays = {name: array for name, array in {**draw(), **edits}.items() if array is not None}
    path = save(tmp_path, **arrays)
    with pytest.raises(ValueError, match=message) as caught:
        load_data(path)
    assert str(caught.value).startswith(path)
    assert "\n" not in str(caught.value)


def test_one_class_left_for_training(tmp_path: Path) -> None:
    # Whichever sample the fixed seed holds out of five: put the only other label there.
    x = np.random.default_rng(0).normal(size=(5, 3))
    results = [load_or_error(save(tmp_path, x=x, y=np.arange(5) == index)) for index in range(5)]
    messages = [result for result in results if isinstance(result, str)]
    assert len(messages) == 1
    assert "y holds one class only (label 0)" in messages[0]


def test_files_that_are_no_npz(tmp_path: Path) -> None:
    good = Path(save(tmp_path, **draw())).read_bytes()
    bad = tmp_path / "bad.npz"
    damaged = bytearray(good)
    damaged[200] ^= 0xFF
    for content, message in (
        (b"", "is not a complete .npz file"),
        (b"text", "is not a complete .npz file"),
        (good[: len(good) // 2], "is not a complete .npz file"),
        (bytes(damaged), "is damaged"),
    ):
        bad.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            load_data(str(bad))


def test_a_zip_of_other_files(tmp_path: Path) -> None:
    path = tmp_path / "other.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x", "no array")
        archive.writestr("y", "no array")
    with pytest.raises(ValueError, match=f"{path}: x holds .* values; convert them to numbers"):
        load_data(str(path))


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple:
            return (Path.touch, (tmp_path / "sprung",))

    path = save(tmp_path, x=np.array([Trap()], dtype=object), y=np.array([0]))
    with pytest.raises(ValueError, match="holds an object array"):
        load_data(path)
    assert not (tmp_path / "sprung").exists()


@given(position=st.integers(0, 10_000), value=st.integers(0, 255))
def test_a_flipped_byte_is_an_error_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, position: int, value: int
) -> None:
    folder = tmp_path_factory.mktemp("flip")
    path = Path(save(folder, **draw()))
    wanted = load_data(str(path))
    data = bytearray(path.read_bytes())
    data[position % len(data)] = value
    path.write_bytes(bytes(data))
    got = load_or_error(str(path))
    if isinstance(got, str):
        assert "\n" not in got
    else:
        np.testing.assert_array_equal(got.x_train, wanted.x_train)


@pytest.mark.parametrize("name", [None, 3, ["digits"]])
def test_data_are_found_by_a_name_or_a_path(name):
    with pytest.raises(TypeError, match="data are found by a name or a path, got"):
        load_data(name)


def test_a_path_and_its_text_are_the_same_data(tmp_path):
    path = tmp_path / "my data ü.npz"
    np.savez(path, x=np.arange(40.0).reshape(20, 2), y=np.arange(20) % 2)
    np.testing.assert_array_equal(load_data(path).x_train, load_data(str(path)).x_train)


def test_what_is_neither_file_nor_folder_is_said(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(FileNotFoundError, match="is neither a file nor a folder; data can be digits"):
        load_data(pipe)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("fmnist", "fashion-mnist"), ("Fashion_MNIST", "fashion-mnist"), ("MNIST", "mnist"), ("digit", "digits")],
)
def test_the_data_somebody_meant(typed, meant):
    with pytest.raises(ValueError, match=rf"unknown data '{typed}'; did you mean '{meant}'\?"):
        load_data(typed)
