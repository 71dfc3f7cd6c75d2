import os
import signal
import subprocess
import sys

import pytest
from commands import kilolayer

from kilolayer.recording import RecordingWriter


@pytest.fixture
def run(tmp_path):
    writer = RecordingWriter(tmp_path / "runs" / "a")
    for step in range(3):
        writer.add(step, "run", "run", "loss", 2.3 - step)
    writer.close()
    return tmp_path / "runs" / "a"


@pytest.mark.parametrize("arguments", [["--once"], []], ids=["once", "until it ends"])
def test_a_finished_run_is_shown_and_left(run, arguments):
    done = kilolayer("watch", run, *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "finished, step 2" in " ".join(done.stdout.split())
    assert "loss" in done.stdout
    assert "\x1b" not in done.stdout


def test_the_folder_of_one_run_stands_for_it(run):
    assert "finished, step 2" in " ".join(kilolayer("watch", run.parent, "--once").stdout.split())


def test_ctrl_c_leaves_cleanly(tmp_path):
    command = [sys.executable, "-W", "error", "-m", "kilolayer", "watch", str(tmp_path / "later"), "--every", "0.1"]
    options = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        "env": os.environ | {"COLUMNS": "80"},
    }
    process = subprocess.Popen(command, **options)
    first = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert "later" in first
    assert process.returncode == 0
    assert err == "Stopped watching; the run goes on.\n"
    assert "Traceback" not in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere", "--once"], "nowhere is no folder; name the folder of a run"),
        (["RUN", "--every", "0"], "--every must be > 0, got 0"),
        (["BOTH"], "holds 2 runs (a, b); name one of them"),
        ([], "Missing argument"),
    ],
)
def test_mistakes_are_one_line(run, arguments, said):
    RecordingWriter(run.parent / "b").close()
    folders = {"RUN": run, "BOTH": run.parent}
    done = kilolayer("watch", *(folders.get(one, one) for one in arguments))
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_it_starts_without_torch(run):
    code = (
        "import sys; from kilolayer.cli.main import main\n"
        f"try: main(['watch', {str(run)!r}])\n"
        "finally: print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "False"


def test_options_are_the_frozen_ones():
    text = kilolayer("watch", "--help").stdout
    found = {word.rstrip(",") for word in text.split() if word.startswith("--")}
    assert found == {"--every", "--once", "--help"}
