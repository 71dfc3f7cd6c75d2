"""``kilolayer coefficients``."""

import json
import re
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from kilolayer.cli.coefficients import coefficients as command
from kilolayer.schemes import RULE_NAMES, coefficients


@pytest.fixture
def run():
    app = typer.Typer()
    app.command()(command)

    def run_command(*arguments):
        return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=True)

    return run_command


def table_rows(output):
    """The numbers of each rule's row, recomputed from the text."""
    return {
        line.split()[0]: [float(number) for number in line.split()[1:]]
        for line in output.splitlines()
        if line.split()[:1] and line.split()[0] in RULE_NAMES
    }


def test_the_table_holds_every_rule_and_its_numbers(run):
    result = run("--encoder-layers", 500, "--decoder-layers", 500)
    assert result.exit_code == 0
    rows = table_rows(result.stdout)
    assert tuple(rows) == RULE_NAMES
    for rule, printed in rows.items():
        ours = coefficients(500, 500, rule=rule)
        expected = [
            ours.encoder.skip_scale,
            ours.encoder.init_gain,
            ours.decoder.skip_scale,
            ours.decoder.init_gain,
            *ours.update_sum,
        ]
        assert printed == pytest.approx(expected, rel=0.05, abs=5e-5)


def test_the_title_counts_layers_and_branches(run):
    lines = run("--encoder-layers", 500, "--decoder-layers", 500).stdout.splitlines()
    assert lines[0].strip() == "encoder: 500 layers, 1000 branches; decoder: 500 layers, 1500 branches"


def test_one_stack_gets_no_columns_for_the_other(run):
    output = run("--decoder-layers", 48).stdout
    assert table_rows(output)["deepnet"] == [3.1302, 0.2259, 0.5]
    assert "encoder alpha" not in output
    assert "coupled\n" not in output


def test_every_rule_comes_with_formula_and_origin(run):
    output = run("--encoder-layers", 6).stdout
    assert "deepnet: alpha = B^(1/4), beta = (4B)^(-1/4); " in output
    assert "arXiv:2203.00555" in output
    for rule in RULE_NAMES:
        assert re.search(rf"^{rule}: alpha = .+\. .+$", output, flags=re.MULTILINE)


def test_json_is_one_object_of_the_agreed_shape(run):
    result = run("--encoder-layers", 6, "--decoder-layers", 12, "--json")
    assert result.exit_code == 0
    printed = json.loads(result.stdout)
    assert list(printed) == ["format", "rules"]
    assert printed["format"] == 1
    assert tuple(printed["rules"]) == RULE_NAMES
    for rule, fields in printed["rules"].items():
        assert set(fields) == {"encoder", "decoder", "update_sum"}
        assert set(fields["encoder"]) == set(fields["decoder"]) == {"skip_scale", "init_gain"}
        assert set(fields["update_sum"]) == {"encoder", "decoder", "coupled"}
        assert fields == coefficients(6, 12, rule=rule).to_dict()


def test_json_says_null_for_a_stack_that_is_not_there(run):
    fields = json.loads(run("--encoder-layers", 6, "--json").stdout)["rules"]["deepnet"]
    assert fields["decoder"] is fields["update_sum"]["decoder"] is fields["update_sum"]["coupled"] is None


def test_one_rule_only(run):
    printed = json.loads(run("--encoder-layers", 6, "--rule", "glm130b", "--json").stdout)
    assert list(printed["rules"]) == ["glm130b"]
    assert tuple(table_rows(run("--encoder-layers", 6, "--rule", "glm130b").stdout)) == ("glm130b",)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "at least one layer"),
        (("--encoder-layers", -1), "encoder_layers must be >= 0, got -1"),
        (("--encoder-layers", 6, "--rule", "deepnets"), "unknown rule 'deepnets'; did you mean 'deepnet'?"),
        (("--encoder-layers", 6, "--batch-size", 32), "batch size never enters"),
    ],
)
def test_a_mistake_is_one_sentence(run, arguments, message):
    result = run(*arguments)
    assert isinstance(result.exception, ValueError)
    assert message in str(result.exception)
    assert "\n" not in str(result.exception)


def test_the_option_list_is_frozen(run):
    shown = set(re.findall(r"--[a-z-]+", run("--help").output))
    assert shown - {"--install-completion", "--show-completion"} == {
        "--encoder-layers",
        "--decoder-layers",
        "--rule",
        "--json",
        "--help",
    }


def test_it_starts_without_torch_and_numpy():
    script = "import sys, kilolayer.cli.coefficients; print([m for m in ('torch', 'numpy') if m in sys.modules])"
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert finished.stdout.strip() == "[]"
