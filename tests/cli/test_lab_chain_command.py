"""``kilolayer lab chain`` as a user types it, in a process of its own."""

import json

import pytest
from commands import kilolayer, no_constants

SMALL = ["--part", "growth", "--part", "products", "--blocks", "4", "--width", "8", "--seeds", "2", "--jobs", "1"]


@pytest.fixture(scope="module")
def small_run(tmp_path_factory):
    out = tmp_path_factory.mktemp("lab") / "out"
    done = kilolayer("lab", "chain", *SMALL, "--out", out)
    assert done.returncode == 0, done.stderr
    return out, done.stdout


def test_tables_name_the_chosen_parts_and_the_picture_is_there(small_run):
    out, text = small_run
    assert "The residual stream, I + J: std of the stream, by blocks" in text
    assert "Products of random Jacobians: effective rank / width, by blocks" in text
    assert "Batch norm" not in text
    assert "figures lie within 10 % of theory" in text.replace("\n", " ")
    assert max(len(line) for line in text.splitlines() if not line.startswith("Picture:")) <= 80
    assert (out / "chain.png").read_bytes()[:4] == b"\x89PNG"


def test_json_has_every_figure_and_nothing_else(small_run):
    out, _ = small_run
    done = kilolayer("lab", "chain", *SMALL, "--out", out, "--json")
    assert done.returncode == 0
    found = json.loads(done.stdout, parse_constant=no_constants)
    assert (found["format"], found["blocks"], found["width"], found["seeds"]) == (1, 4, 8, [0, 1])
    assert {row["part"] for row in found["rows"]} == {"growth", "products"}
    for row in found["rows"]:
        assert set(row) == {"part", "case", "quantity", "at", "unit", "predicted", "low", "high", "measured"}
        assert len(row["measured"]) == 2


def test_options_are_the_frozen_ones():
    text = kilolayer("lab", "chain", "--help").stdout
    found = {word.rstrip(",") for word in text.split() if word.startswith("--")}
    assert found == {"--part", "--blocks", "--width", "--seeds", "--jobs", "--on", "--out", "--json", "--help"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--blocks", "1"], "--blocks must be a whole number >= 2, got 1"),
        (["--width", "4"], "--width must be a whole number >= 8, got 4"),
        (["--seeds", "0"], "--seeds must be >= 1, got 0"),
        (["--jobs", "0"], "--jobs must be >= 1, got 0"),
        (["--part", "product"], "--part: unknown part 'product'; did you mean 'products'?"),
    ],
)
def test_a_mistake_is_one_line_and_exit_status_2(tmp_path, arguments, message):
    done = kilolayer("lab", "chain", *SMALL, *arguments, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""
    assert not (tmp_path / "out").exists()
