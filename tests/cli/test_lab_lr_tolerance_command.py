"""``kilolayer lab lr-tolerance`` as a user types it, in a process of its own."""

import json

import pytest
from commands import kilolayer, no_constants

from kilolayer.cli.main import main

SMALL = ["--layers", "2", "--layers", "3", "--width", "16", "--steps", "12", "--batch-size", "4", "--length", "16"]
GRID = ["--lr", "0.01", "--lr", "1e6", "--refinements", "1", "--warmup-steps", "0", "--warmup-steps", "2"]
SCHEMES = ["--scheme", "pre-ln", "--scheme", "keel", "--jobs", "1"]


@pytest.fixture(scope="module")
def small_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lab")
    text = folder / "text.txt"
    text.write_text("abcabcabd" * 200, encoding="utf-8")  # learned within a few steps
    arguments = [*SMALL, *GRID, *SCHEMES, "--data", text, "--out", folder / "out"]
    done = kilolayer("lab", "lr-tolerance", *arguments)
    assert done.returncode == 0, done.stderr
    return arguments, folder / "out", done.stdout


def test_tables_verdict_and_picture(small_run):
    _, out, text = small_run
    assert "Largest stable learning rate" in text
    assert text.count("Held-out loss by learning rate") == 4
    assert "pre-ln stands less than keel in" in " ".join(text.split())
    assert "\x1b" not in text
    assert max(len(line) for line in text.splitlines() if not line.startswith("Picture:")) <= 80
    assert (out / "lr-tolerance.png").read_bytes()[:4] == b"\x89PNG"


def test_json_is_the_contract_and_agrees_with_itself(small_run):
    arguments, out, _ = small_run
    before = sorted((path, path.stat().st_mtime_ns) for path in out.glob("*/result.json"))
    done = kilolayer("lab", "lr-tolerance", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout, parse_constant=no_constants)
    assert sorted((path, path.stat().st_mtime_ns) for path in out.glob("*/result.json")) == before
    assert found["format"] == 1
    assert len(found["searches"]) == 8
    assert len(found["runs"]) == sum(len(one["outcomes"]) for one in found["searches"])
    for search in found["searches"]:
        outcomes = {one["lr"]: one["outcome"] for one in search["outcomes"]}
        assert outcomes[1e6] == "diverges"
        stable = search["largest_stable_lr"]
        assert stable is None or outcomes[stable] == "stable"
    assert any(search["largest_stable_lr"] for search in found["searches"])
    for run in found["runs"]:
        assert {"scheme", "rule", "encoder_layers", "decoder_layers", "seed", "lr", "losses", "grad_norm_by_branch",
                "nonfinite_step", "seconds", "peak_memory_mib", "outcome", "warmup_steps"} <= set(run)  # fmt: skip


def test_options_are_the_frozen_ones():
    text = kilolayer("lab", "lr-tolerance", "--help").stdout
    assert {word.rstrip(",") for word in text.split() if word.startswith("--")} == {
        "--scheme", "--layers", "--width", "--steps", "--batch-size", "--length", "--lr", "--refinements",
        "--warmup-steps", "--clip", "--optimizer", "--seeds", "--data", "--jobs", "--on", "--out", "--json", "--help",
    }  # fmt: skip


def test_the_default_grid_is_the_library_s():
    from kilolayer.cli.lab_lr_tolerance import lr_tolerance
    from kilolayer.lab.lr_tolerance import DEFAULT_LAYERS, DEFAULT_LRS, Search

    defaults = dict(zip(lr_tolerance.__code__.co_varnames, lr_tolerance.__defaults__, strict=False))
    assert tuple(defaults["lr"].default) == DEFAULT_LRS
    assert tuple(defaults["layers"].default) == DEFAULT_LAYERS
    assert defaults["refinements"].default == Search.refinements


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--layers", "0"], "--layers must be >= 1, got 0"),
        (["--seeds", "0"], "--seeds must be >= 1, got 0"),
        (["--lr", "0.1"], "--lr needs two different rates or more, got 0.1"),
        (["--lr", "0.1", "--lr", "-1"], "--lr must be a positive number, got -1"),
        (["--refinements", "-1"], "--refinements must be >= 0, got -1"),
        (["--clip", "-1"], "--clip must be a positive number, got -1"),
        (["--warmup-steps", "-1"], "--warmup-steps must be a whole number >= 0, got -1"),
        (["--scheme", "kell"], "unknown scheme 'kell'; did you mean 'keel'?"),
        (["--data", "nowhere.txt"], "there is no file 'nowhere.txt'"),
    ],
)
def test_a_mistake_is_one_line_and_exit_status_2(tmp_path, capsys, monkeypatch, arguments, message):
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "1")  # else the command would set it for the tests that follow
    with pytest.raises(SystemExit) as end:
        main(["lab", "lr-tolerance", *SMALL, *arguments, "--out", str(tmp_path / "out")])
    said = capsys.readouterr()
    assert (end.value.code, said.out) == (2, "")
    assert message in said.err
    assert len(said.err.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()
