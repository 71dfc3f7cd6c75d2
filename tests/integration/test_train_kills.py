"""A run killed at random moments ends with the same bits as one that was left alone."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest
import torch

from kilolayer.train.checkpoints import complete_checkpoints, load_checkpoint
from kilolayer.train.run_folder import load_run_recipe

SETTINGS = [
    *("width=16", "head_width=8", "length=12", "batch_size=4", "warmup_steps=2", "dropout=0.1", "eval_every=20"),
    *("save_every=5", "monitor_every=7"),
]


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    text = tmp_path_factory.mktemp("kills") / "text.txt"
    draw = random.Random(0)
    text.write_text("".join(draw.choice(["the dog ", "a cat ", "runs. ", "sees\n"]) for _ in range(600)))
    settings = [part for one in SETTINGS for part in ("--set", one)]
    training = [sys.executable, "-m", "kilolayer", "train", "language", "--data", str(text), "--layers", "2"]
    return [*training, "--steps", "60", *settings, "--json", "--out"]


def start(command, out):
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([*command, str(out)], env=os.environ | {"OMP_NUM_THREADS": "1"}, **quiet)


def tensors(out):
    recipe, _ = load_run_recipe(out)
    found = load_checkpoint(complete_checkpoints(out / "checkpoints")[-1], recipe)
    assert found.state["step"] == 60
    return {(file, name): tensor for file, those in found.tensors.items() for name, tensor in those.items()}


def test_killed_again_and_again(command, tmp_path):
    assert start(command, tmp_path / "straight").wait(120) == 0
    draw, killed = random.Random(7), 0
    for _ in range(30):
        process = start(command, tmp_path / "killed")
        wait_for_checkpoint(tmp_path / "killed", process)
        time.sleep(draw.uniform(0.0, 0.25))
        process.send_signal(signal.SIGKILL)
        if process.wait(60) == 0:
            break
        killed += 1
        if killed == 3:
            assert start(command, tmp_path / "killed").wait(120) == 0
            break
    assert killed >= 1
    one, two = tensors(tmp_path / "straight"), tensors(tmp_path / "killed")
    assert one.keys() == two.keys()
    assert all(torch.equal(tensor, two[key]) for key, tensor in one.items())
    assert not list((tmp_path / "killed" / "checkpoints").glob(".*"))


def wait_for_checkpoint(out, process):
    """Until the process has written one of its own, so that the kill falls into training and not into imports."""
    before = {path.name for path in complete_checkpoints(out / "checkpoints")}
    while process.poll() is None and {path.name for path in complete_checkpoints(out / "checkpoints")} == before:
        time.sleep(0.01)
