import dataclasses

import pytest
from small_runs import small_language

from kilolayer import Recording
from kilolayer.train import load_recording, train
from kilolayer.train import segments as room
from kilolayer.train.segments import join_segments, segment_folders


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("segments")
    recipe = small_language(folder)
    train(recipe, folder / "run")
    return recipe, folder / "run"


def test_segments_end_where_checkpoints_are(run):
    names = [path.name for path in segment_folders(run[1] / "recordings")]
    assert names == ["00000000-00000004", "00000004-00000008", "00000008-00000012"]


def test_a_run_under_way_can_be_read(run, tmp_path):
    recipe, _ = run

    def stop(step):
        if step == 6:
            raise KeyboardInterrupt

    train(recipe, tmp_path / "run", on_step=stop)
    assert not (tmp_path / "run" / "recording").exists()
    assert load_recording(tmp_path / "run").series("run", "run", "loss")[0].tolist() == list(range(6))


def test_joining_again_changes_nothing(run):
    before = Recording.load(run[1] / "recording")
    again = join_segments(run[1])
    assert len(again) == len(before)
    assert again.facts == before.facts
    assert not list(run[1].glob(".recording*"))


def test_a_kill_while_joining_leaves_the_segments(run, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(room.os, "rename", lambda *names: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            join_segments(run[1])
    assert len(load_recording(run[1]).steps()) == 12
    join_segments(run[1])
    assert (run[1] / "recording").is_dir()


def test_nothing_is_joined_where_nothing_was_recorded(tmp_path):
    assert join_segments(tmp_path) is None
    with pytest.raises(FileNotFoundError, match="holds no recording"):
        load_recording(tmp_path)


def test_a_longer_run_joins_the_new_segments_too(run, tmp_path):
    recipe = dataclasses.replace(run[0], schedule="constant", steps=4)
    train(recipe, tmp_path / "run")
    assert len(load_recording(tmp_path / "run").steps()) == 4
    train(dataclasses.replace(recipe, steps=8), tmp_path / "run")
    assert len(load_recording(tmp_path / "run").steps()) == 8
