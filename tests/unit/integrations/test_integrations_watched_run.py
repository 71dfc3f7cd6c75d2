"""What the callbacks share: the folder of a resumed run, the end of the process, the line at the end."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from kilolayer.integrations.watched_run import WatchedRun, WatchOptions, free_folder, summary_line
from kilolayer.recording import Recording, RecordingWriter

SCRIPT = """
import torch
from kilolayer.integrations.watched_run import WatchedRun, WatchOptions

model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = WatchedRun(WatchOptions(every=1, out="run"), model, optimizer=optimizer)
for _ in range(3):
    loss = model(torch.ones(2, 3)).sum()
    loss.backward()
    run.log(loss=loss)
    optimizer.step()
model(torch.ones(2, 3))
raise RuntimeError("mine")
"""


def test_a_script_that_fails_leaves_a_readable_recording(tmp_path):
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stderr.rstrip().endswith("RuntimeError: mine")
    recording = Recording.load(tmp_path / "run")
    assert recording.steps("run", "loss").tolist() == [0, 1, 2]
    assert recording.steps("activation", "rms").tolist() == [0, 1, 2, 3]


def test_closing_twice_is_closing_once_and_then_nothing_is_logged(capsys):
    model = nn.Linear(3, 1)
    run = WatchedRun(WatchOptions(every=1), model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), step=7)
    model(torch.ones(2, 3)).sum().backward()
    run.log(loss=1.0)
    run.monitor.optimizers[0].step()
    recording = run.close()
    assert run.close(failed=True) is recording
    run.log(loss=2.0)
    assert recording.series("run", "run", "loss")[0].tolist() == [7]
    run.report()
    assert capsys.readouterr().err == f"kilolayer: recorded 1 step of {len(recording.sites)} sites\n"


@pytest.mark.parametrize(
    ("taken", "step", "wanted"),
    [
        pytest.param([], 0, "run", id="fresh"),
        pytest.param([], 5, "run", id="resumed elsewhere"),
        pytest.param(["run"], 0, "run", id="in use"),
        pytest.param(["run"], 5, "run-from-5", id="resumed"),
        pytest.param(["run", "run-from-5"], 5, "run-from-5-2", id="resumed twice"),
        pytest.param(["run", "run-from-5", "run-from-5-2"], 5, "run-from-5-3", id="resumed three times"),
    ],
)
def test_where_a_run_writes(taken, step, wanted, tmp_path):
    for name in taken:
        (tmp_path / name).mkdir()
        (tmp_path / name / "recording.json").touch()
    assert free_folder(tmp_path / "run", step) == tmp_path / wanted
    assert free_folder(None, step) is None


def test_the_line_says_where():
    writer = RecordingWriter()
    writer.add(0, "run", "run", "loss", 1.0)
    recording = writer.close()
    assert summary_line(recording, None) == "kilolayer: recorded 1 step of 0 sites"
    assert summary_line(recording, "runs/a") == "kilolayer: recorded 1 step of 0 sites in runs/a"
