"""``kilolayer lab depth`` as a user types it."""

import json
import random

import pyarrow.parquet as pq
import pytest
from commands import kilolayer, no_constants

from kilolayer import Recording
from kilolayer.cli.main import main


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    folder = tmp_path_factory.mktemp("grid")
    draw = random.Random(0)
    (folder / "text.txt").write_text(
        "".join(draw.choice(["the dog ", "a cat ", "runs. ", "sees\n"]) for _ in range(600))
    )
    arguments = [
        *("--schemes", "post-ln,deepnorm", "--layers", "2,3", "--lr", "1e-2,1e30", "--seeds", "1", "--steps", "8"),
        *("--set", "width=16", "--set", "head_width=8", "--set", "batch_size=4", "--set", "monitor_every=4"),
        *("--set", "clip=none", "--data", folder / "text.txt", "--jobs", "1", "--json", "--out", folder / "grid"),
    ]
    return folder / "grid", arguments, kilolayer("lab", "depth", *arguments)


def test_json_has_a_record_for_every_cell(grid):
    _, _, done = grid
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout, parse_constant=no_constants)
    assert found["format"] == 1
    assert len(found["runs"]) == 8
    for run in found["runs"]:
        assert len(run["grad_norm_by_branch"]) == 2 * run["decoder_layers"]
        assert run["outcome"] in ("trains", "stuck", "non-finite", "unstable")
        assert run["rule"] == ("deepnet" if run["scheme"] == "deepnorm" else None)
    calm = [run for run in found["runs"] if run["lr"] == 1e-2]
    assert all(len(run["losses"]) == 8 and run["held_out_loss"] < run["losses"][0] for run in calm)
    assert any(run["outcome"] != "trains" for run in found["runs"] if run["lr"] == 1e30)
    assert "At 3 layers" in found["sentence"]


def test_every_cell_is_a_run_of_its_own(grid):
    out, _, _ = grid
    cells = [path for path in out.iterdir() if path.is_dir()]
    assert len(cells) == 8
    for cell in cells:
        names = {path.name for path in (cell / "run").iterdir()}
        assert {"config.json", "environment.json", "recording", "result.json"} <= names
        assert len(Recording.load(cell / "run" / "recording"))
    assert pq.read_table(out / "results.parquet").num_rows == 8


def test_a_rerun_fills_only_what_is_missing(grid, capsys):
    out, arguments, done = grid
    before = {path: path.stat().st_mtime_ns for path in out.glob("*/result.json")}
    with pytest.raises(SystemExit) as stop:
        main(["lab", "depth", *map(str, arguments)])
    assert stop.value.code == 0
    assert json.loads(capsys.readouterr().out) == json.loads(done.stdout)
    assert before == {path: path.stat().st_mtime_ns for path in before}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--schemes", "post-nl"], "did you mean 'post-ln'"),
        (["--layers", "8,x"], "--layers takes whole numbers with commas in between, got '8,x'"),
        (["--lr", "high"], "--lr takes numbers with commas in between, got 'high'"),
        (["--seeds", "0"], "--seeds must be >= 1, got 0"),
        (["--set", "widht=3"], "unknown setting 'widht'; did you mean 'width'?"),
        (["--set", "lr=3"], "--set lr is what the grid varies; use --lr"),
        (["--data", "none.txt"], "there is no file 'none.txt'"),
    ],
    ids=["scheme", "layers", "rate", "seeds", "setting", "varied", "data"],
)
def test_mistakes_are_one_line(tmp_path, capsys, arguments, message):
    with pytest.raises(SystemExit) as stop:
        main(["lab", "depth", "--out", str(tmp_path / "out"), *arguments])
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert message in said
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_options_are_the_frozen_ones(capsys):
    with pytest.raises(SystemExit):
        main(["lab", "depth", "--help"])
    words = {word.strip(",") for line in capsys.readouterr().out.splitlines() for word in line.split()[:1]}
    assert {word for word in words if word.startswith("--")} == {
        *(
            "--schemes",
            "--layers",
            "--lr",
            "--seeds",
            "--steps",
            "--set",
            "--data",
            "--jobs",
            "--on",
            "--out",
            "--json",
        ),
    }
