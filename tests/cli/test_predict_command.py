"""``kilolayer predict``."""

import itertools
import json
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from kilolayer.cli.predict import predict as command

GOLDEN = """\
pre-ln: 4 branches, width 64, relu, layer norm, kaiming init
  branch  stream RMS  95 % of draws  gradient RMS  95 % of draws
   input           1  0.978 to 1.02          2.28   2.13 to 2.44
       1        1.41   1.35 to 1.48          1.61    1.52 to 1.7
       2        1.73   1.63 to 1.84           1.3   1.25 to 1.36
       3           2   1.86 to 2.14          1.12   1.09 to 1.15
       4        2.23   2.07 to 2.41             1
Per branch, stream times 1.222, gradient towards the input times 1.229.
Trainable depth at this rate (6 correlation lengths): about 14.5 branches.
Largest activation expected in the stream: 8.38.
The norm multiplies gradients by 1 in the first branch, 0.5 in the last.
"""


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    app = typer.Typer()
    app.command()(command)

    def run_command(*arguments):
        return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=True)

    return run_command


def test_golden(run):
    result = run("--scheme", "pre-ln", "--blocks", 4, "--width", 64)
    assert result.exit_code == 0, result.exception
    lines = [line.rstrip() for line in result.stdout.splitlines()]
    assert "\n".join(line for line in lines if line.strip() and "──" not in line) + "\n" == GOLDEN


def test_json_agrees_with_itself(run):
    result = run("--scheme", "deepnorm", "--rule", "three-l", "--layers", 3, "--width", 32, "--json")
    printed = json.loads(result.stdout)
    assert printed["format"] == 1
    assert printed["network"] == {
        "scheme": "deepnorm",
        "rule": "three-l",
        "layers": 3,
        "branches": 6,
        "width": 32,
        "activation": "relu",
        "norm": "layer",
        "init": "kaiming",
        "batch_size": 64,
    }
    assert printed["measured"] is None
    predicted = printed["predicted"]
    for name in ("stream", "gradient"):
        sizes, bands = predicted[f"{name}_rms"], predicted[f"{name}_band"]
        assert len(sizes) == len(bands) == 7
        assert all(low <= size <= high for size, (low, high) in zip(sizes, bands, strict=True))
    stream, gradient = predicted["stream_rms"], predicted["gradient_rms"]
    assert predicted["forward_rates"] == pytest.approx([b / a for a, b in itertools.pairwise(stream)])
    assert predicted["backward_rates"] == pytest.approx([a / b for a, b in itertools.pairwise(gradient)])
    assert predicted["backward_rate"] == pytest.approx((gradient[0] / gradient[-1]) ** (1 / 6))
    assert len(predicted["norm_factor"]) == len(predicted["identity_fraction"]) == 6


def test_measured_beside_predicted(run):
    arguments = ("--scheme", "sub-ln", "--layers", 4, "--width", 32, "--batch-size", 16, "--measure", "--seed", 5)
    measured = json.loads(run(*arguments, "--json").stdout)["measured"]
    assert measured["seed"] == 5
    assert len(measured["stream_rms"]) == len(measured["gradient_rms"]) == 9
    shown = run(*arguments).stdout
    assert shown.count("measured") == 3
    assert f"measured {measured['largest_activation']:.3g}" in shown
    last = next(line.split() for line in shown.splitlines() if line.split()[:1] == ["8"])
    assert f"{measured['stream_rms'][8]:.3g}" in last


def test_what_is_not_finite_is_null(run):
    predicted = json.loads(run("--scheme", "residual", "--blocks", 3000, "--json").stdout)["predicted"]
    assert predicted["stream_rms"][-1] is None
    assert predicted["largest_activation"] is None
    assert predicted["norm_factor"] == [None] * 3000
    assert json.loads(run("--scheme", "rezero", "--blocks", 3, "--json").stdout)["predicted"]["trainable_depth"] is None


def test_overflow_of_float16_is_said(run):
    assert "float16 ends at 65,504" in run("--scheme", "residual", "--blocks", 64).stdout
    assert "float16" not in run("--scheme", "deepnorm", "--blocks", 64).stdout


def test_admin_is_predicted_with_the_profile_it_should_find(run):
    assert "admin: 4 branches" in run("--scheme", "admin", "--blocks", 4).stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give the depth once"),
        (("--blocks", 2, "--layers", 2), "give the depth once"),
        (("--blocks", 0), "num_layers must be >= 1, got 0"),
        (("--layers", -1), "num_layers must be >= 1, got -1"),
        (("--blocks", 2, "--width", 0), "width must be >= 1, got 0"),
        (("--blocks", 2, "--width", 3), "width must be >= 4, got 3"),
        (("--blocks", 2, "--norm", "batch", "--batch-size", 2), "batch_size must be >= 3, got 2"),
        (("--blocks", 2, "--scheme", "deepnom"), "did you mean 'deepnorm'"),
        (("--blocks", 2, "--rule", "deepne"), "did you mean 'deepnet'"),
        (("--blocks", 2, "--activation", "gleu"), "did you mean 'gelu'"),
        (("--blocks", 2, "--norm", "group"), "norm_kind 'group' is unknown"),
        (("--blocks", 2, "--init", "he"), "unknown init 'he'; did you mean 'kaiming'"),
        (("--blocks", 2, "--batch-size", 1), "batch_size must be >= 2, got 1"),
        (("--blocks", 100_001), "at most 100,000 branches are predicted, got 100,001"),
        (("--layers", 60_000), "at most 100,000 branches are predicted, got 120,000"),
        (("--blocks", 100_000, "--width", 100_000, "--measure"), "the network to measure needs about"),
        (("--blocks", 2, "--norm", "batch", "--batch-size", 10**9), "a prediction with batch norm needs about"),
    ],
)
def test_mistakes(run, arguments, message):
    result = run(*arguments)
    assert result.exit_code == 1
    assert isinstance(result.exception, ValueError)
    assert message in str(result.exception)


def test_no_torch_without_measure():
    code = (
        "import sys\nfrom kilolayer.cli.main import main\n"
        "try:\n    main(['predict', '--blocks', '4', '--json'])\nexcept SystemExit:\n    pass\n"
        "assert 'torch' not in sys.modules, 'torch was imported'\n"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert json.loads(finished.stdout)["measured"] is None


def test_without_batch_norm_any_batch_fits_and_a_deep_prediction_says_that_it_takes_a_while(run, monkeypatch):
    monkeypatch.setattr("kilolayer.cli.predict.SLOW_BRANCHES", 2)
    for norm in ("layer", "batch"):
        scheme = "pre-ln" if norm == "layer" else "residual"
        result = run("--blocks", 3, "--scheme", scheme, "--norm", norm, "--batch-size", 10**9, "--json")
        assert json.loads(result.stdout)["network"]["branches"] == 3
        assert result.stderr == "predicting 3 branches, which takes a while\n"
