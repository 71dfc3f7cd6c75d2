"""Files of others: read from their headers first, refused with the reason."""

import json
import os
import pickle
import struct

import pytest
import torch
from safetensors.torch import save_file

from kilolayer.convert.checkpoint import check_checkpoint, load_tensors, load_weights, read_header

TENSORS = {"a.weight": torch.arange(6.0).view(2, 3), "b": torch.zeros(4, dtype=torch.bfloat16)}


@pytest.fixture
def folder(tmp_path):
    save_file(TENSORS, tmp_path / "model.safetensors")
    return tmp_path


def test_headers_say_names_shapes_and_sizes(folder):
    found = check_checkpoint(folder)
    assert found.shapes == {"a.weight": (2, 3), "b": (4,)}
    assert found.num_bytes == 6 * 4 + 4 * 2
    assert all(torch.equal(value, TENSORS[name]) for name, value in load_tensors(folder).items())


def test_shards_and_their_index(tmp_path):
    names = {"a.weight": "model-1.safetensors", "b": "model-2.safetensors"}
    for name, file in names.items():
        save_file({name: TENSORS[name]}, tmp_path / file)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    assert set(check_checkpoint(tmp_path).shapes) == set(TENSORS)
    save_file(TENSORS, tmp_path / "model-2.safetensors")
    with pytest.raises(ValueError, match=r"holds 'a\.weight' twice"):
        check_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({"weight_map": {"a": "../secret.safetensors"}}, "a file outside of its directory"),
        ({"weight_map": {"a": "/etc/passwd"}}, "a file outside of its directory"),
        ({"weight_map": ["a"]}, "has no weight_map of file names"),
        ({}, "has no weight_map of file names"),
        ([1], "holds a list, not a table"),
    ],
)
def test_an_index_that_points_elsewhere(tmp_path, index, message):
    index = {"metadata": {}, **index} if isinstance(index, dict) else index
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=message):
        check_checkpoint(tmp_path)


def test_an_index_that_is_no_json(tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text("{")
    with pytest.raises(ValueError, match="is no JSON"):
        check_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({"weight_map": {"a.weight": "model.safetensors"}}, "has no metadata"),
        ({"metadata": {}, "weight_map": {"a.weight": "model.safetensors"}}, "do not agree on 'b'"),
        ({"metadata": {}, "weight_map": dict.fromkeys(("a.weight", "b", "c"), "model.safetensors")}, "agree on 'c'"),
    ],
    ids=["no metadata", "less", "more"],
)
def test_an_index_that_does_not_fit_its_files(folder, index, message):
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=message):
        check_checkpoint(folder)


def test_more_than_memory_holds_is_refused_before_it_is_taken(folder):
    with pytest.raises(ValueError, match=r"of memory are free; use a machine with more"):
        check_checkpoint(folder, memory_bytes=31)
    assert check_checkpoint(folder, memory_bytes=32).num_bytes == 32


class Evil:
    def __reduce__(self):
        return os.mkdir, ("made-by-a-pickle",)


def test_a_pickle_is_refused_with_the_reason_and_never_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"a": Evil()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"pytorch_model\.bin and no safetensors: a pickle can run code"):
        check_checkpoint(tmp_path)
    with pytest.raises(ValueError, match="needs pickle for more than tensors, which can run code"):
        load_weights(tmp_path / "pytorch_model.bin")
    (tmp_path / "raw.pt").write_bytes(pickle.dumps({"a": Evil()}))
    with pytest.raises(ValueError, match="needs pickle for more than tensors"):
        load_weights(tmp_path / "raw.pt")
    assert not (tmp_path / "made-by-a-pickle").exists()


def test_a_state_dict_of_tensors_is_read_either_way(folder):
    torch.save(TENSORS, folder / "weights.pt")
    for name in ("weights.pt", "model.safetensors"):
        found = load_weights(folder / name)
        assert all(torch.equal(value, found[key]) for key, value in TENSORS.items())
    torch.save([1, 2], folder / "list.pt")
    with pytest.raises(ValueError, match="holds a list, not a state dict of tensors"):
        load_weights(folder / "list.pt")


@pytest.mark.parametrize("missing", [True, False])
def test_nothing_to_read(tmp_path, missing):
    with pytest.raises((FileNotFoundError, ValueError), match=r"no such directory|holds no model\.safetensors"):
        check_checkpoint(tmp_path / "nowhere" if missing else tmp_path)


def header_of(entries):
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text


GOOD = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "its header of 0 bytes does not fit"),
        (b"\xff" * 40, "does not fit"),
        (struct.pack("<Q", 3) + b"{{{", "is no safetensors file"),
        (struct.pack("<Q", 2) + b"[]", "its header is no table"),
        (header_of({"a": GOOD}) + b"\0" * 4, "holds 4 bytes of tensors and its header says 8"),
        (header_of({"a": {**GOOD, "shape": [3]}}) + b"\0" * 8, "takes 12 bytes, the header says 8"),
        (header_of({"a": {**GOOD, "shape": [-2]}}) + b"\0" * 8, "no whole numbers >= 0"),
        (header_of({"a": {**GOOD, "shape": [2.0]}}) + b"\0" * 8, "no whole numbers >= 0"),
        (header_of({"a": {**GOOD, "shape": "2"}}) + b"\0" * 8, "no whole numbers >= 0"),
        (header_of({"a": {**GOOD, "data_offsets": [8, 0]}}) + b"\0" * 8, "the header says -8"),
        (header_of({"a": GOOD, "b": GOOD}) + b"\0" * 16, "'b' starts at byte 0, the tensor before it ends at 8"),
        (header_of({"a": {**GOOD, "data_offsets": [8, 16]}}) + b"\0" * 16, "'a' starts at byte 8"),
        (struct.pack("<Q", 100_000) + b"[" * 100_000, "is no safetensors file"),
        (header_of({"a": {**GOOD, "dtype": "F99"}}) + b"\0" * 8, "dtype 'F99', which is not known"),
        (header_of({"a": {"shape": [2]}}) + b"\0" * 8, "is broken"),
        (header_of({"a": {**GOOD, "shape": [10**15]}}) + b"\0" * 8, "takes 4000000000000000 bytes"),
    ],
    ids=[
        "empty",
        "huge",
        "no json",
        "no table",
        "short",
        "shape",
        "negative",
        "float",
        "text",
        "backwards",
        "overlap",
        "gap",
        "nested",
        "dtype",
        "offsets",
        "enormous",
    ],
)
def test_broken_headers(tmp_path, content, message):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_header(path)
