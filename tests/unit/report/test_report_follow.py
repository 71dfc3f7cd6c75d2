"""Following a run through its files: parts as they come, the death of its process, its end."""

import json
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from report_runs import finding, healthy

from kilolayer.recording import RecordingWriter, Site
from kilolayer.report import RunFollower, find_runs, load_run
from kilolayer.report.follow import SILENT_S

WRITER = """
import sys, time
from kilolayer.recording import RecordingWriter
writer = RecordingWriter(sys.argv[1])
writer.add(0, "run", "run", "loss", 2.3)
writer.flush()
writer.wait()
print("saved", flush=True)
time.sleep(120)
"""


def begin(folder):
    """A recording that is being written by this process, its first step saved."""
    writer = RecordingWriter(folder)
    writer.sites = [Site("blocks.0:sum", "blocks.0", "sum", 0, block_index=0, stream=True)]
    save(writer, 0)
    return writer


def save(writer, step):
    writer.add(step, "blocks.0:sum", "activation", "rms", 1.0)
    writer.add(step, "run", "run", "loss", 2.3 - 0.1 * step)
    writer.flush()
    writer.wait()


def change_writer(folder, **fields):
    path = folder / "recording.json"
    header = json.loads(path.read_text())
    header["writer"] |= fields
    path.write_text(json.dumps(header))


def test_a_run_is_followed_from_before_its_beginning_to_its_end(tmp_path):
    folder = tmp_path / "run"
    follower = RunFollower(folder)
    assert follower.look().state == "waiting"
    writer = begin(folder)
    first = follower.look()
    assert (first.state, first.has_ended) == ("running", False)
    assert first.view.recording.steps().tolist() == [0]
    assert 0 <= first.age_s < 100
    assert follower.look().view is first.view
    save(writer, 1)
    assert follower.look().view.recording.steps().tolist() == [0, 1]
    writer.close()
    last = follower.look()
    assert (last.state, last.has_ended) == ("finished", True)


def test_a_closed_recording_does_not_say_who_wrote_it(tmp_path):
    writer = begin(tmp_path / "run")
    header = json.loads((tmp_path / "run" / "recording.json").read_text())
    assert header["writer"] == {"host": platform.node(), "pid": os.getpid()}
    writer.close()
    assert "writer" not in json.loads((tmp_path / "run" / "recording.json").read_text())


@pytest.mark.skipif(os.name != "posix", reason="processes are asked after on POSIX only")
def test_a_killed_run_is_dead_and_what_it_saved_is_there(tmp_path):
    folder = tmp_path / "run"
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"saved\n"
    follower = RunFollower(folder)
    assert follower.look().state == "running"
    process.send_signal(signal.SIGKILL)
    # Not collected yet, the process is a zombie; collected, it is gone.
    wait_until(lambda: follower.look().state == "died")
    process.wait()
    process.stdout.close()
    glance = follower.look()
    assert (glance.state, glance.has_ended) == ("died", True)
    assert len(glance.view.recording) == 1


def wait_until(is_true):
    for _ in range(200):
        if is_true():
            return
        time.sleep(0.05)
    raise AssertionError("it did not come about")


@pytest.mark.parametrize(
    "fields",
    [{"host": "elsewhere"}, {"pid": None}, {"pid": "1"}, {"pid": -1}],
    ids=["another machine", "no process", "text", "no number of a process"],
)
def test_of_a_process_that_cannot_be_asked_after_the_files_tell(tmp_path, fields):
    folder = tmp_path / "run"
    begin(folder)
    change_writer(folder, **fields)
    follower = RunFollower(folder)
    assert follower.look().state == "running"
    old = time.time() - 2 * SILENT_S
    for path in folder.iterdir():
        os.utime(path, (old, old))
    glance = follower.look()
    assert (glance.state, glance.has_ended) == ("silent", False)
    assert glance.age_s > SILENT_S


def test_findings_that_come_later_are_seen(tmp_path):
    writer = begin(tmp_path / "run")
    follower = RunFollower(tmp_path / "run")
    assert follower.look().view.root is None
    writer.close()
    said = {"root": finding().to_dict(), "findings": [finding().to_dict()]}
    (tmp_path / "run" / "findings.json").write_text(json.dumps(said))
    assert follower.look().view.root == finding()


def segments(folder, *spans):
    for first, last in spans:
        healthy(steps=range(first, last)).recording.save(folder / "recordings" / f"{first:08d}-{last:08d}")


def test_segments_of_a_run_are_one_recording_that_is_open_until_they_are_joined(tmp_path):
    folder = tmp_path / "run"
    segments(folder, (0, 3))
    follower = RunFollower(folder)
    assert follower.look().state == "running"
    segments(folder, (3, 5))
    assert find_runs(tmp_path) == [folder]
    assert load_run(folder).recording.steps().tolist() == [0, 1, 2, 3, 4]
    assert follower.look().view.recording.steps().tolist() == [0, 1, 2, 3, 4]
    healthy().recording.save(folder / "recording")
    assert follower.look().state == "finished"


def test_a_file_that_goes_away_while_one_looks_is_no_error(tmp_path, monkeypatch):
    follower = RunFollower(tmp_path / "run")
    begin(tmp_path / "run")
    monkeypatch.setattr(Path, "stat", lambda path, **options: (_ for _ in ()).throw(FileNotFoundError(path)))
    monkeypatch.setattr("kilolayer.report.follow.recording_files", lambda folder: [folder / "part-00000.parquet"])
    assert follower.look().state == "waiting"
