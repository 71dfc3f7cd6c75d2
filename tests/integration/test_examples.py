"""Every example runs as its first lines say, and shows something."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = {
    "plain_loop.py": "0.418x per block",
    "huggingface_trainer.py": "update ratio of the first feed-forward matrix",
    "lightning_trainer.py": "step 0: gradient norm",
    "accelerate_loop.py": "step 5: gradient norm",
    "loggers.py": r"tensorboard has the layers' numbers of steps \[0, 5, 10, 15\]",
}


def run(*command, folder):
    environment = os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_run_and_record(name, tmp_path):
    done = run(EXAMPLES / name, tmp_path / "recording", folder=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert re.search(SCRIPTS[name], done.stdout)
    assert list((tmp_path / "recording").rglob("recording.json"))


def test_the_pytest_example_passes(tmp_path):
    done = run("-m", "pytest", "-q", "-p", "no:cacheprovider", EXAMPLES / "test_model_trains.py", folder=tmp_path)
    assert done.returncode == 0, done.stdout[-2000:]


def test_the_broken_set_up_is_found_out(tmp_path):
    target = f"{EXAMPLES / 'broken_setup.py'}:build"
    done = run("-m", "kilolayer", "check", target, "--no-trial", "--budget-s", "120", folder=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr[-2000:]
    assert "post-norm-too-deep" in done.stdout


def test_every_example_is_run_here():
    assert {path.name for path in EXAMPLES.glob("*.py")} == {*SCRIPTS, "broken_setup.py", "test_model_trains.py"}
