"""``kilolayer check train.py``: an ordinary training script, unchanged."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kilolayer.cli.main import app

SCRIPT = """
import sys

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(256, 12)
data = torch.utils.data.TensorDataset(x, x[:, :4].argmax(1))
model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4), nn.Softmax(dim=1))
optimizer = torch.optim.SGD(model.parameters(), lr=float(sys.argv[1]) if sys.argv[1:] else 0.1)
criterion = nn.CrossEntropyLoss()
for epoch in range(3):
    for inputs, targets in torch.utils.data.DataLoader(data, batch_size=32, shuffle=True):
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()
    print("epoch", epoch)
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    return "train.py"


def check(*arguments):
    return CliRunner().invoke(app, ["check", *arguments], catch_exceptions=True)


def test_cause_proof_and_a_diff_of_the_script(script):
    done = check(script, "--steps", "40", "--write-patch")
    assert done.exit_code == 1
    assert "output-loss-mismatch" in done.output
    assert "Proven on your set-up" in done.output
    assert "--- a/train.py\n+++ b/train.py" in done.output
    assert "epoch 0" not in done.output


def test_the_scripts_own_arguments(script):
    done = check(script, "--json", "--no-trial", "--steps", "5", "--", "1e-9")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["root"]["code"] == "SET506"


def test_arguments_of_a_function_are_refused(script):
    done = check("train.py:main", "3")
    assert "is a function, which gets no arguments, got 3" in str(done.exception or done.output)


def test_sarif_names_the_script(script):
    check(script, "--no-trial", "--steps", "5", "--sarif", "found.sarif")
    log = json.loads(Path("found.sarif").read_text(encoding="utf-8"))
    location = log["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
    assert location["artifactLocation"]["uri"] == "train.py"
