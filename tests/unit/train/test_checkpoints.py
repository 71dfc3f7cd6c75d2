import errno
import json
import os

import pytest
import torch

from kilolayer.train import checkpoints, language
from kilolayer.train.checkpoints import (
    complete_checkpoints,
    keep_last,
    load_checkpoint,
    passed_over,
    remove_after,
    save_checkpoint,
    step_of,
)

RECIPE = language(data="a", decoder_layers=3)
TENSORS = {"model": {"weight": torch.arange(6.0).reshape(2, 3), "count": torch.tensor([3, 0])}, "empty": {}}


def save(root, step, **state):
    return save_checkpoint(root, step, recipe=RECIPE, state=state, tensors=TENSORS)


def test_what_was_saved_is_loaded(tmp_path):
    found = load_checkpoint(save(tmp_path, 20, seconds=1.5), RECIPE)
    assert found.state["step"] == 20
    assert found.state["seconds"] == 1.5
    assert found.tensors["empty"] == {}
    for name, tensor in TENSORS["model"].items():
        assert torch.equal(found.tensors["model"][name], tensor)


def test_files_are_safetensors_and_json(tmp_path):
    assert {path.suffix for path in save(tmp_path, 1).iterdir()} == {".safetensors", ".json"}


@pytest.mark.parametrize("harm", ["no-state", "half-state", "half-tensors", "no-tensors", "hidden"])
def test_an_incomplete_one_is_passed_over(tmp_path, harm):
    save(tmp_path, 10)
    newest = save(tmp_path, 20)
    state, tensors = newest / "state.json", newest / "model.safetensors"
    if harm == "no-state":
        state.unlink()
    elif harm == "half-state":
        state.write_bytes(state.read_bytes()[:30])
    elif harm == "half-tensors":
        tensors.write_bytes(tensors.read_bytes()[:-1])
    elif harm == "no-tensors":
        tensors.unlink()
    else:
        newest.rename(tmp_path / ".step-00000020.77")
    assert [step_of(path) for path in complete_checkpoints(tmp_path)] == [10]
    assert passed_over(tmp_path) == ([] if harm == "hidden" else [newest])


def test_one_without_checksums_is_of_an_older_version(tmp_path):
    folder = save(tmp_path, 10)
    state = json.loads((folder / "state.json").read_text())
    del state["checksums"]
    (folder / "state.json").write_text(json.dumps(state))
    assert load_checkpoint(folder, RECIPE).tensors.keys() == TENSORS.keys()


def test_a_full_disk_leaves_the_old_ones_and_nothing_else(tmp_path, monkeypatch):
    save(tmp_path, 10)

    def full(path, data):
        if path.name == "model.safetensors":
            path.write_bytes(data[:5])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(checkpoints, "replace_file", full)
    with pytest.raises(
        OSError, match=r"the checkpoint of step 20 could not be written to .* \(No space left on device\)"
    ):
        save(tmp_path, 20)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000010"]
    assert load_checkpoint(tmp_path / "step-00000010", RECIPE).state["step"] == 10


@pytest.mark.parametrize("stop_before", ["os.rename", "os.fsync"])
def test_killed_on_the_way_it_is_not_there(tmp_path, monkeypatch, stop_before):
    save(tmp_path, 10)

    def killed(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(stop_before, killed)
        with pytest.raises(KeyboardInterrupt):
            save(tmp_path, 20)
    assert [step_of(path) for path in complete_checkpoints(tmp_path)] == [10]
    keep_last(tmp_path, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000010"]


def test_only_the_newest_are_kept(tmp_path):
    for step in (5, 10, 100, 15):
        save(tmp_path, step)
    keep_last(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000015", "step-00000100"]
    remove_after(tmp_path, 15)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000015"]


def test_one_that_is_there_stays(tmp_path):
    first = save(tmp_path, 10, seconds=1.0)
    assert save(tmp_path, 10, seconds=2.0) == first
    assert load_checkpoint(first, RECIPE).state["seconds"] == 1.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scheme": "pre-ln"}, "a checkpoint of deepnorm with 3 decoder layers, and the recipe asks for pre-ln with 3"),
        ({"decoder_layers": 6}, "asks for deepnorm with 6 decoder layers: the same weights would compute another"),
    ],
    ids=["scheme", "depth"],
)
def test_another_function_is_refused(tmp_path, changes, message):
    folder = save(tmp_path, 10)
    with pytest.raises(ValueError, match=message):
        load_checkpoint(folder, language(**({"data": "a", "decoder_layers": 3} | changes)))


def test_another_format_is_refused(tmp_path):
    folder = save(tmp_path, 10)
    state = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps(state | {"format": 2}))
    with pytest.raises(ValueError, match="of format 2, and this kilolayer reads format 1"):
        load_checkpoint(folder, RECIPE)


@pytest.mark.parametrize("place", [slice(None), slice(-3, -2)], ids=["all", "a-byte-of-a-weight"])
def test_tensors_of_the_right_size_and_wrong_content(tmp_path, place):
    folder = save(tmp_path, 10)
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[place] = b"\xff" * len(content[place])
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is damaged"):
        load_checkpoint(folder, RECIPE)
