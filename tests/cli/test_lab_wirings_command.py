"""``kilolayer lab wirings`` as a user types it, in a process of its own."""

import json
import signal
import subprocess
import sys
import time

import pytest
from commands import kilolayer, no_constants

SMALL = ["--blocks", "3", "--width", "8", "--steps", "4", "--batch-size", "16", "--jobs", "1"]


@pytest.fixture(scope="module")
def small_run(tmp_path_factory):
    out = tmp_path_factory.mktemp("lab") / "out"
    done = kilolayer("lab", "wirings", *SMALL, "--lr", "0.05", "--lr", "0.01", "--out", out)
    assert done.returncode == 0, done.stderr
    return out, done.stdout


def test_tables_name_every_wiring_and_the_report_is_there(small_run):
    out, text = small_run
    for name in (
        "plain-naive",
        "plain-kaiming",
        "ln",
        "res-nonorm",
        "res-nonorm-scaled",
        "postnorm",
        "prenorm",
        "deepnorm",
    ):
        assert f"{name}, lr 0.05:" in text
        assert f"{name}, lr 0.01:" in text
    assert "Step 0" in text
    assert "Training" in text
    assert max(len(line) for line in text.splitlines() if not line.startswith("Report:")) <= 80
    assert "\x1b" not in text
    assert (out / "report.html").stat().st_size > 1000
    assert (out / "report.png").read_bytes()[:4] == b"\x89PNG"
    assert str(out / "report.html") in text.replace("\n", "")


def test_json_is_the_contract_and_nothing_else(small_run):
    out, _ = small_run
    done = kilolayer("lab", "wirings", *SMALL, "--lr", "0.05", "--lr", "0.01", "--out", out, "--json")
    assert done.returncode == 0
    found = json.loads(done.stdout, parse_constant=no_constants)
    assert found["format"] == 1
    assert len(found["runs"]) == 16
    for run in found["runs"]:
        assert {
            "wiring", "seed", "lr", "norm", "blocks", "width", "init", "loss", "accuracy", "nonfinite_step", "outcome",
            "seconds", "root",
        } <= set(run)  # fmt: skip
        init = run["init"]
        assert init["block"] == [1, 3]
        for key in ("activation_std", "predicted_std", "grad_norm"):
            assert len(init[key]) == 2
        for low, high in init["predicted_band"]:
            assert low <= high
        assert run["outcome"] in ("non-finite", "stuck", "slow", "trains")


def test_options_are_the_frozen_ones():
    text = kilolayer("lab", "wirings", "--help").stdout
    found = {word.rstrip(",") for word in text.split() if word.startswith("--")}
    assert found == {
        "--wiring", "--blocks", "--width", "--steps", "--batch-size", "--lr", "--norm", "--warmup-steps", "--seeds",
        "--data", "--backend", "--jobs", "--on", "--out", "--json", "--help",
    }  # fmt: skip


def test_numpy_backend(tmp_path):
    arguments = ["--wiring", "prenorm", "--wiring", "plain-naive", "--lr", "0.05", "--json"]
    runs = {}
    for backend in ("torch", "numpy"):
        done = kilolayer("lab", "wirings", *SMALL, *arguments, "--backend", backend, "--out", tmp_path / backend)
        assert done.returncode == 0, done.stderr
        runs[backend] = json.loads(done.stdout)["runs"]
    for torch_run, numpy_run in zip(runs["torch"], runs["numpy"], strict=True):
        assert numpy_run["loss"] == pytest.approx(torch_run["loss"], rel=1e-4)
        assert numpy_run["init"]["activation_std"] == pytest.approx(torch_run["init"]["activation_std"], rel=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--blocks", "0"], "--blocks must be >= 1, got 0"),
        (["--width", "-2"], "--width must be >= 1, got -2"),
        (["--steps", "0"], "--steps must be >= 1, got 0"),
        (["--batch-size", "1"], "--batch-size must be >= 2, got 1"),
        (["--lr", "-1"], "--lr must be a positive number of at most 1e+38, got -1"),
        (["--lr", "nan"], "--lr must be a positive number of at most 1e+38, got nan"),
        (["--seeds", "0"], "--seeds must be >= 1, got 0"),
        (["--jobs", "0"], "--jobs must be >= 1 and at most 256, got 0"),
        (["--jobs", "100000"], "--jobs must be >= 1 and at most 256, got 100000"),
        (["--seeds", "1000000"], "these are 16,000,000 runs, an experiment holds 10,000; lower --seeds"),
        (["--width", "1000000"], "this experiment needs about"),
        (["--batch-size", "5000"], "--batch-size 5000 is more than the 1,438 training samples of digits; lower it"),
        (["--warmup-steps", "5"], "--warmup-steps 5 is more than --steps 4, so that the learning rate would never"),
        (["--wiring", "pre-norm"], "--wiring: unknown wiring 'pre-norm'; did you mean 'prenorm'?"),
        (["--data", "digit"], "digit"),
        (["--data", "/nowhere/at/all"], "/nowhere/at/all"),
    ],
)
def test_a_mistake_is_one_line_and_exit_status_2(tmp_path, arguments, message):
    done = kilolayer("lab", "wirings", *SMALL, *arguments, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("arguments", [["--norm", "group"], ["--blocks", "many"], ["--no-such-option"]])
def test_what_the_parser_refuses_is_exit_status_2_without_a_traceback(arguments):
    done = kilolayer("lab", "wirings", *arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_an_out_that_is_a_file_or_another_experiment_is_refused_untouched(small_run, tmp_path):
    out, _ = small_run
    before = sorted((p.name, p.stat().st_mtime_ns) for p in out.rglob("*"))
    done = kilolayer("lab", "wirings", *SMALL, "--blocks", "4", "--out", out)
    assert (done.returncode, len(done.stderr.strip().splitlines())) == (2, 1)
    assert "blocks is 3 there, 4 here" in done.stderr
    assert sorted((p.name, p.stat().st_mtime_ns) for p in out.rglob("*")) == before
    file = tmp_path / "file"
    file.write_text("mine")
    done = kilolayer("lab", "wirings", *SMALL, "--out", file)
    assert done.returncode == 2
    assert file.read_text() == "mine"


def test_ctrl_c_leaves_a_readable_partial_result_and_the_same_command_continues(tmp_path):
    arguments = ["lab", "wirings", "--blocks", "8", "--width", "16", "--steps", "200", "--lr", "0.05", "--jobs", "2"]
    command = [sys.executable, "-m", "kilolayer", *arguments, "--out", str(tmp_path / "out")]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A test run in the background inherits an ignored SIGINT; a user's terminal does not.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    for _ in range(1200):
        if len(list((tmp_path / "out").glob("*/result.json"))) >= 2 or process.poll() is not None:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    assert "the same command continues" in stderr
    assert "Training" in stdout
    assert not list((tmp_path / "out").glob(".*.part"))
    done = kilolayer(*arguments, "--out", tmp_path / "out")
    assert done.returncode == 0
    assert len(list((tmp_path / "out").glob("*/result.json"))) == 8


def test_help_needs_no_torch():
    code = (
        "import sys\n"
        "from kilolayer.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "assert not {'torch', 'numpy', 'pyarrow'} & set(sys.modules), 'heavy imports'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "lab" in done.stdout
