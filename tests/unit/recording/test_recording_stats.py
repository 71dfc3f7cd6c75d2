"""Which statistics a recording holds, in memory and on disk."""

import pytest

from kilolayer.recording import Recording, RecordingWriter, reading


def filled(folder=None):
    writer = RecordingWriter(folder)
    for step in range(2):
        writer.add(step, "run", "run", "lr", 0.1)
        writer.add(step, "a", "activation", "rms", 1.0)
        writer.flush()
    writer.add(2, "run", "run", "loss", 1.0)
    return writer


@pytest.mark.parametrize("held_rows", [100, 0], ids=["in memory", "on disk"])
def test_statistics_are_told_by_role(tmp_path, monkeypatch, held_rows):
    monkeypatch.setattr(reading, "HELD_ROWS", held_rows)
    filled(tmp_path / "run").close()
    recording = Recording.load(tmp_path / "run")
    assert recording.stats("run") == ("loss", "lr")
    assert recording.stats("activation") == ("rms",)
    assert recording.stats("update") == ()


def test_a_recording_without_a_row_has_none():
    assert RecordingWriter().close().stats("run") == ()
    assert filled().close().stats("run") == ("loss", "lr")


def test_a_recorded_nan_is_no_missing_row():
    writer = RecordingWriter()
    writer.add(0, "a", "activation", "rms", float("nan"))
    writer.add(1, "b", "activation", "rms", 1.0)
    recording = writer.close()
    assert recording.recorded("activation", "rms", ["a", "b", "c"]).tolist() == [
        [True, False, False],
        [False, True, False],
    ]
    assert recording.recorded("update", "rms", ["a"]).shape == (0, 1)
    assert recording.matrix("activation", "rms", ["b"])[1].tolist() == [[1.0]]


def test_sites_with_rows_are_told_by_statistic():
    writer = RecordingWriter()
    writer.add(0, "a", "activation", "rms", 1.0)
    writer.add(0, "b", "activation", "std", 1.0)
    recording = writer.close()
    assert recording.site_names("activation", "rms") == ("a",)
    assert recording.site_names("update", "rms") == ()
