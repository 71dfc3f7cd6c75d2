"""A run's folder with things in it that no run wrote: one line, and no waiting."""

import os

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import kilolayer as kl
from kilolayer.cli.main import app


def recorded(folder, name="layer"):
    model = nn.Sequential()
    model.add_module(name, nn.Linear(3, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with kl.Monitor(model, optimizer, every=1, out=folder):
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(4, 3)).square().mean().backward()
            optimizer.step()
    return folder


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
@pytest.mark.parametrize("command", [["report"], ["watch", "--once"]])
def test_a_pipe_in_the_place_of_a_part_is_not_waited_for(command, tmp_path):
    folder = recorded(tmp_path / "run")
    (part,) = folder.glob("part-*.parquet")
    part.unlink()
    os.mkfifo(part)
    with pytest.raises(ValueError, match=r"part-00000\.parquet is no file"):
        kl.Recording.load(folder)
    assert CliRunner().invoke(app, [*command, str(folder)]).exit_code != 0


def test_a_header_without_its_format_says_so(tmp_path):
    folder = recorded(tmp_path / "run")
    (folder / "recording.json").write_text("{}")
    with pytest.raises(ValueError, match=r"damaged \(it has no 'format'\)"):
        kl.Recording.load(folder)


@pytest.mark.parametrize("name", ["new\nline", "a\r", "<b>", "\x1b[31m", "\u202eabc"])
def test_any_name_a_module_can_have_is_recorded(name, tmp_path):
    recording = kl.Recording.load(recorded(tmp_path / "run", name))
    assert any(site.name.startswith(name) for site in recording.sites)


def test_the_path_of_the_report_is_text(tmp_path):
    folder = recorded(tmp_path / "a\u202e\x1b[31m")
    done = CliRunner().invoke(app, ["report", str(folder)])
    assert done.exit_code == 0
    assert "\u202e" not in done.output
    assert "\\u202e\\x1b[31m" in done.output
