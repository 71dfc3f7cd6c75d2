"""``kilolayer check --write-patch``: the change of code below the verdict."""

import json
import shutil
import subprocess

import pytest
from commands import kilolayer, no_constants

USER = """\
import torch
from torch import nn


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
    inputs = torch.randn(64, 12)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    return model, inputs, inputs[:, :4].argmax(1), nn.CrossEntropyLoss(), optimizer
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def user_file(rate):
        (tmp_path / "user.py").write_text(USER.replace("RATE", rate))
        return tmp_path / "user.py"

    return user_file


def test_the_diff_below_the_verdict_mends_the_file(write):
    path = write("3.0")
    done = kilolayer("check", "user.py:build", "--steps", 60, "--write-patch")
    assert done.returncode == 1, done.stderr
    verdict, _, diff = done.stdout.partition("\n# UPD301 lr-too-high: ")
    assert "Remedy: Proven: " in verdict
    assert "Proven on your set-up, 60 steps: " in verdict
    assert diff.startswith("lower learning rate, proven: loss ")
    assert path.read_text() == USER.replace("RATE", "3.0")
    if shutil.which("git") is not None:
        patch = diff.partition("\n")[2]
        subprocess.run(["git", "apply", "-"], input=patch, text=True, check=True, cwd=path.parent)
        assert path.read_text() == USER.replace("RATE", "0.03")


def test_with_json_it_is_a_field(write):
    write("3.0")
    done = kilolayer("check", "user.py:build", "--steps", 40, "--no-trial", "--write-patch", "--json")
    said = json.loads(done.stdout, parse_constant=no_constants)
    assert "lr=0.0" in said["patch"]
    assert said["patch"].startswith("# UPD301 lr-too-high: lower learning rate, not tried\n")
    assert said["trials"] == []


def test_a_healthy_set_up_has_nothing_to_change(write):
    write("0.01")
    done = kilolayer("check", "user.py:build", "--steps", 60, "--write-patch")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ok")
    assert len(done.stdout.splitlines()) == 1
