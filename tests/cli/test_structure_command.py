"""``kilolayer structure``."""

import json

import pytest

from kilolayer.cli.main import main

FILE = """
import torch
from torch import nn

def encoder():
    print("loading")
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return nn.TransformerEncoder(layer, 2), (torch.randn(2, 3, 8),)
"""


@pytest.fixture
def target(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return f"{path}:encoder"


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main(["structure", *arguments])
    return stop.value.code or 0, capsys.readouterr()


def test_the_drawing(target, capsys):
    status, printed = run(capsys, target)
    assert status == 0
    assert printed.out.startswith("4 residual sums in 1 chain, wired as post-ln\n")
    assert "\x1b" not in printed.out
    assert printed.err == "loading\n"


def test_json_has_the_fields_of_the_structure_and_nothing_else(target, capsys):
    status, printed = run(capsys, target, "--json")
    found = json.loads(printed.out)
    assert status == 0
    assert found["format"] == 1
    assert {"branches", "final_norm", "chains", "scheme", "opaque"} <= set(found)
    assert {"path", "call", "norm_placement", "skip_scale", "branch_scale"} <= set(found["branches"][0])
    assert found["chains"] == [[0, 1, 2, 3]]
    assert found["scheme"] == "post-ln"


def test_a_mistake_is_one_line(target, capsys):
    status, printed = run(capsys, target + "s")
    assert status == 2
    assert printed.err.count("\n") == 1
    assert "did you mean 'encoder'?" in printed.err
