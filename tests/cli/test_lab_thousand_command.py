"""``kilolayer lab thousand`` as a user types it, in a process of its own."""

import json
import signal
import subprocess
import sys
import time

import pytest
from commands import kilolayer, no_constants

from kilolayer.cli.main import main
from kilolayer.lab.training import CHECKPOINT

SMALL = [
    "--encoder-layers", "2", "--decoder-layers", "3", "--steps", "4", "--width", "16", "--batch-size", "8", "--jobs", "1",
    "--scheme", "deepnorm", "--scheme", "post-ln",
]  # fmt: skip


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    path = tmp_path_factory.mktemp("pairs") / "pairs.tsv"
    path.write_text("".join(f"{n} dogs bark.\t{n} Hunde bellen.\n" for n in range(1200)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def small_run(pairs, tmp_path_factory):
    out = tmp_path_factory.mktemp("lab") / "out"
    done = kilolayer("lab", "thousand", *SMALL, "--data", pairs, "--out", out)
    assert done.returncode == 0, done.stderr
    return out, done.stdout


def test_tables_sentence_and_picture(small_run):
    out, text = small_run
    for words in (
        "Learning",
        "Gradient by branch",
        "Use of source and depth",
        "deepnorm:deepnet",
        "post-ln",
        "tok:13a",
    ):
        assert words in text
    assert "At 2+3 layers" in text
    assert max(len(line) for line in text.splitlines() if not line.startswith("Picture:")) <= 80
    assert "\x1b" not in text
    assert (out / "thousand.png").read_bytes()[:4] == b"\x89PNG"
    assert not list(out.rglob(CHECKPOINT))


def test_json_is_the_contract_and_nothing_else(small_run, pairs):
    out, _ = small_run
    done = kilolayer("lab", "thousand", *SMALL, "--data", pairs, "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout, parse_constant=no_constants)
    assert found["format"] == 1
    assert [(run["scheme"], run["rule"]) for run in found["runs"]] == [("deepnorm", "deepnet"), ("post-ln", None)]
    for run in found["runs"]:
        assert {
            "scheme", "rule", "encoder_layers", "decoder_layers", "seed", "lr", "losses", "grad_norm_by_branch",
            "nonfinite_step", "seconds", "peak_memory_mib", "dev_loss", "dev_unigram_loss", "unigram_entropy",
            "encoder_use", "effective_depth", "layer_skips", "bleu", "bleu_signature", "grad_spread", "outcome",
        } <= set(run)  # fmt: skip
        assert (run["encoder_layers"], run["decoder_layers"], run["steps"], run["steps_done"]) == (2, 3, 4, 4)
        assert len(run["losses"]) == 4
        assert len(run["grad_norm_by_branch"]) == len(run["stacks"]) == 2 * 2 + 3 * 3
        assert run["layer_skips"]["decoder"]["layer"] == [0, 1, 2]
        assert run["outcome"] in ("trains", "source-unused", "slow", "stuck", "non-finite")


def test_options_are_the_frozen_ones():
    text = kilolayer("lab", "thousand", "--help").stdout
    found = {word.rstrip(",:") for word in text.split() if word.startswith("--")}
    assert found == {
        "--encoder-layers", "--decoder-layers", "--scheme", "--lr", "--steps", "--width", "--batch-size", "--warmup-steps",
        "--optimizer", "--head", "--seeds", "--data", "--vocab-size", "--length", "--depth-samples", "--jobs", "--on", "--out", "--json",
        "--help",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--encoder-layers", "4"],
            "--encoder-layers and --decoder-layers go in pairs, got 2 of the one and 1 of the other",
        ),
        (["--encoder-layers", "0", "--decoder-layers", "4"], "--encoder-layers must be >= 1, got 0"),
        (["--encoder-layers", "4", "--decoder-layers", "0"], "--decoder-layers must be a whole number >= 1, got 0"),
        (["--steps", "0"], "--steps must be a whole number >= 1, got 0"),
        (["--lr", "0"], "--lr must be a positive number, got 0"),
        (["--seeds", "0"], "--seeds must be >= 1, got 0"),
        (["--jobs", "0"], "--jobs must be >= 1, got 0"),
        (["--vocab-size", "-1"], "--vocab-size must be >= 16, got -1"),
        (["--vocab-size", "9"], "--vocab-size must be >= 16, got 9"),
        (["--depth-samples", "0"], "--depth-samples must be >= 1, got 0"),
        (["--length", "1"], "--length must be a whole number >= 2, got 1"),
        (["--batch-size", "20000"], "has too few pairs"),
        (["--scheme", "deepnrom"], "deepnorm"),
        (["--optimizer", "adam"], "--optimizer 'adam' is unknown; use one of adamw, sgd, muon"),
        (
            ["--data", "/nowhere/pairs.tsv"],
            "there is no file '/nowhere/pairs.tsv'; data can be a file of sentence pairs, or 'number-words'",
        ),
    ],
)
def test_a_mistake_is_one_line_and_exit_status_2(pairs, tmp_path, capsys, arguments, message):
    with pytest.raises(SystemExit) as ended:
        main(["lab", "thousand", *SMALL, "--data", str(pairs), *arguments, "--out", str(tmp_path / "out")])
    said = capsys.readouterr()
    assert ended.value.code == 2
    assert message in said.err
    assert len(said.err.strip().splitlines()) == 1
    assert said.out == ""
    assert not (tmp_path / "out").exists()


def test_a_bad_line_of_the_file_is_named(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("Go.\tGeh.\nHi. Hallo.\n", encoding="utf-8")
    done = kilolayer("lab", "thousand", *SMALL, "--data", path, "--out", tmp_path / "out")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"kilolayer: {path} line 2 has no tab between source and target: 'Hi. Hallo.'\n"


def test_ctrl_c_shows_unfinished_runs_and_the_same_command_continues_exactly(pairs, tmp_path):
    arguments = [*SMALL[:-2], "--steps", "300", "--data", str(pairs), "--json"]
    straight = json.loads(kilolayer("lab", "thousand", *arguments, "--out", tmp_path / "straight").stdout)["runs"][0]
    command = [sys.executable, "-m", "kilolayer", "lab", "thousand", *arguments, "--out", str(tmp_path / "out")]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A test run in the background inherits an ignored SIGINT; a user's terminal does not.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    while not list((tmp_path / "out").glob(".*.part")) and process.poll() is None:
        time.sleep(0.02)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    assert "Stopped with 0 of 1 runs finished; the same command continues." in stderr
    stopped = json.loads(stdout, parse_constant=no_constants)["runs"]
    assert [run["outcome"] for run in stopped] == ["unfinished"]
    assert 0 < stopped[0]["steps_done"] < 300
    assert stopped[0]["losses"] == straight["losses"][: stopped[0]["steps_done"]]
    resumed = json.loads(kilolayer("lab", "thousand", *arguments, "--out", tmp_path / "out").stdout)["runs"][0]
    for key in ("losses", "grad_norm_by_branch", "dev_loss", "encoder_use", "layer_skips", "bleu"):
        assert resumed[key] == straight[key]
