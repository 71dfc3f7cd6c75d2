"""``kilolayer lab rules`` as a user types it, in a process of its own."""

import json

import pytest
from commands import kilolayer, no_constants

from kilolayer.cli.main import main

SMALL = ["--layers", "6", "--width", "16", "--steps", "4", "--batch-size", "4", "--length", "16", "--jobs", "1"]
SCHEMES = ["--scheme", "post-ln", "--scheme", "deepnorm", "--scheme", "deepnorm:per-stack"]


@pytest.fixture(scope="module")
def small_run(tmp_path_factory):
    out = tmp_path_factory.mktemp("lab") / "out"
    done = kilolayer("lab", "rules", *SMALL, *SCHEMES, "--seeds", "2", "--out", out)
    assert done.returncode == 0, done.stderr
    return out, done.stdout


def test_tables_verdict_and_picture(small_run):
    out, text = small_run
    for name in ("post-ln", "deepnorm:deepnet", "deepnorm:per-stack"):
        assert text.count(name) >= 4
    assert "Loss" in text
    assert "Gradient by depth, at step 0" in text
    assert "ends lowest (6 layers, 4 steps, 2 seeds)" in " ".join(text.split())
    assert "\x1b" not in text
    assert max(len(line) for line in text.splitlines() if not line.startswith("Picture:")) <= 80
    assert (out / "rules.png").read_bytes()[:4] == b"\x89PNG"
    assert not list(out.glob(".*.part"))


def test_json_is_the_contract_and_nothing_is_run_twice(small_run):
    out, _ = small_run
    before = sorted((path, path.stat().st_mtime_ns) for path in out.glob("*/result.json"))
    done = kilolayer("lab", "rules", *SMALL, *SCHEMES, "--seeds", "2", "--out", out, "--json")
    assert done.returncode == 0
    found = json.loads(done.stdout, parse_constant=no_constants)
    assert sorted((path, path.stat().st_mtime_ns) for path in out.glob("*/result.json")) == before
    assert (found["format"], len(found["runs"]), len(found["ranking"])) == (1, 6, 3)
    for run in found["runs"]:
        assert len(run["losses"]) == run["steps"] == 4
        assert len(run["grad_norm_by_branch"]) == 12
        assert len(run["grad_norm_by_layer"]) == 6
    by_rule = {(run["rule"], run["seed"]): run["losses"] for run in found["runs"]}
    # For a single stack the two rules are one.
    assert by_rule["deepnet", 0] == by_rule["per-stack", 0]
    assert by_rule["deepnet", 0] != by_rule["deepnet", 1]
    means = [one["held_out_loss"] for one in found["ranking"]]
    assert means == sorted(means)
    assert found["sentence"].startswith(found["ranking"][0]["scheme"])


def test_data_of_ones_own_and_the_other_options(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog\n" * 30, encoding="utf-8")
    options = ["--optimizer", "sgd", "--init", "kaiming", "--warmup-steps", "2", "--seeds", "1", "--lr", "0.1"]
    arguments = [*SMALL, "--scheme", "keel", *options, "--data", text, "--out", tmp_path / "out", "--json"]
    done = kilolayer("lab", "rules", *arguments)
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(done.stdout)["runs"]
    assert (run["optimizer"], run["init"], run["warmup_steps"], run["lr"]) == ("sgd", "kaiming", 2, 0.1)
    assert run["data"] == str(text)


def test_options_are_the_frozen_ones():
    text = kilolayer("lab", "rules", "--help").stdout
    assert {word.rstrip(",") for word in text.split() if word.startswith("--")} == {
        "--scheme", "--layers", "--width", "--steps", "--batch-size", "--length", "--lr", "--warmup-steps", "--optimizer",
        "--init", "--seeds", "--data", "--jobs", "--on", "--out", "--json", "--help",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--layers", "0"], "--layers must be >= 1, got 0"),
        (["--seeds", "0"], "--seeds must be >= 1, got 0"),
        (["--steps", "0"], "--steps must be a whole number >= 1, got 0"),
        (["--lr", "-1"], "--lr must be a positive number, got -1"),
        (["--scheme", "deepnrom"], "unknown scheme 'deepnrom'; did you mean 'deepnorm'?"),
        (["--scheme", "deepnorm:glm"], "unknown rule 'glm'; did you mean 'glm130b'?"),
        (["--optimizer", "adam"], "optimizer 'adam' is unknown; use one of adamw, sgd, muon"),
        (["--init", "xaver"], "did you mean 'xavier'?"),
        (["--data", "nowhere.txt"], "there is no file 'nowhere.txt'"),
        (["--length", "1000000"], "--length 1000000 needs a text of"),
    ],
)
def test_a_mistake_is_one_line_and_exit_status_2(tmp_path, capsys, monkeypatch, arguments, message):
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "1")  # else the command would set it for the tests that follow
    with pytest.raises(SystemExit) as end:
        main(["lab", "rules", *SMALL, *arguments, "--out", str(tmp_path / "out")])
    said = capsys.readouterr()
    assert (end.value.code, said.out) == (2, "")
    assert message in said.err
    assert len(said.err.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_text_that_is_not_utf_8_is_refused_with_its_line(tmp_path):
    path = tmp_path / "latin.txt"
    path.write_bytes(b"fine\ncaf\xe9\n" * 100)
    done = kilolayer("lab", "rules", *SMALL, "--data", path, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert "line 2 is not UTF-8" in done.stderr


def test_another_experiment_in_the_folder_is_refused(small_run):
    out, _ = small_run
    done = kilolayer("lab", "rules", *SMALL, *SCHEMES, "--lr", "0.1", "--out", out)
    assert done.returncode == 2
    assert "lr is 0.001 there, 0.1 here" in done.stderr
