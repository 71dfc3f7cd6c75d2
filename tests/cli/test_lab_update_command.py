"""``kilolayer lab update`` as a user types it, in a process of its own."""

import json

import pytest
from commands import kilolayer, no_constants

SMALL = ["--width", "8", "--steps", "2", "--jobs", "1", "--branches", "2", "--branches", "4"]


@pytest.fixture(scope="module")
def small_run(tmp_path_factory):
    out = tmp_path_factory.mktemp("lab") / "out"
    done = kilolayer("lab", "update", *SMALL, "--out", out)
    assert done.returncode == 0, done.stderr
    return out, done.stdout


def test_tables_name_every_scheme_and_the_picture_is_there(small_run):
    out, text = small_run
    for name in ("post-ln", "post-ln:beta-only", "deepnorm", "pre-ln"):
        for optimizer in ("sgd", "adamw"):
            assert f"{name} {optimizer}" in text
    assert "Model update after 1 step, by branches" in text
    assert "Model update after 2 steps, by branches" in text
    assert "Step 0, first and last branch" in text
    assert "Gradient of the stream, bottom over top, by branches" in text
    assert "The first step moves 4 branches farther than 2" in text
    assert max(len(line) for line in text.splitlines() if not line.startswith("Picture:")) <= 80
    assert (out / "update.png").read_bytes()[:4] == b"\x89PNG"


def test_json_is_the_contract_and_nothing_else(small_run):
    out, _ = small_run
    before = {path: path.stat().st_mtime_ns for path in out.glob("*/result.json")}
    done = kilolayer("lab", "update", *SMALL, "--out", out, "--json")
    assert done.returncode == 0
    assert {path: path.stat().st_mtime_ns for path in out.glob("*/result.json")} == before
    found = json.loads(done.stdout, parse_constant=no_constants)
    assert found["format"] == 1
    assert len(found["runs"]) == 16
    for run in found["runs"]:
        assert {
            "scheme", "rule", "encoder_layers", "decoder_layers", "seed", "lr", "losses", "grad_norm_by_branch",
            "nonfinite_step", "seconds", "peak_memory_mib", "network", "branches", "optimizer", "update_sum", "updates",
            "matrix_updates", "start", "end",
        } <= set(run)  # fmt: skip
        assert len(run["grad_norm_by_branch"]) == run["branches"]
        assert set(run["updates"]) == set(run["matrix_updates"]) == {"1", "2"}
    assert {(run["scheme"], run["rule"]) for run in found["runs"]} == {
        ("post-ln", None), ("post-ln", "beta-only"), ("deepnorm", "deepnet"), ("pre-ln", None),
    }  # fmt: skip


def test_options_are_the_frozen_ones():
    text = kilolayer("lab", "update", "--help").stdout
    found = {word.rstrip(",") for word in text.split() if word.startswith("--")}
    assert found == {
        "--scheme", "--branches", "--network", "--optimizer", "--lr", "--width", "--steps", "--seeds", "--jobs", "--on",
        "--out", "--json", "--help",
    }  # fmt: skip


def test_networks_exponents_and_rates_can_be_chosen(tmp_path):
    arguments = ["--network", "mlp", "--network", "encoder", "--optimizer", "sgd", "--scheme", "deepnorm:power-0.5"]
    done = kilolayer(
        "lab", "update", *SMALL, *arguments, "--lr", "0.1", "--lr", "0.01", "--out", tmp_path / "out", "--json"
    )
    assert done.returncode == 0, done.stderr
    runs = json.loads(done.stdout)["runs"]
    assert {(run["network"], run["lr"], run["rule"]) for run in runs} == {
        (network, lr, "power-0.5") for network in ("mlp", "encoder") for lr in (0.1, 0.01)
    }
    assert {run["encoder_layers"] for run in runs} == {1, 2, 4}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--branches", "3"], "--branches come in pairs in a Transformer's layers, got 3"),
        (["--branches", "0"], "--branches must be a whole number >= 1, got 0"),
        (["--width", "7"], "--width must be even"),
        (["--steps", "0"], "--steps must be a whole number >= 1, got 0"),
        (["--lr", "-1"], "--lr must be a positive number, got -1"),
        (["--seeds", "0"], "--seeds must be >= 1, got 0"),
        (["--jobs", "0"], "--jobs must be >= 1, got 0"),
        (["--scheme", "prenorm"], "unknown scheme 'prenorm'; did you mean 'pre-ln'?"),
        (["--scheme", "plain"], "scheme 'plain' has no skips"),
        (["--scheme", "deepnorm:power-9"], "power-P with P from 0 to 2"),
        (["--network", "rnn"], "--network"),
        (["--optimizer", "muon"], "--optimizer"),
    ],
)
def test_a_mistake_is_one_line_and_exit_status_2(tmp_path, arguments, message):
    done = kilolayer("lab", "update", *SMALL, *arguments, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""
    assert not (tmp_path / "out").exists()
