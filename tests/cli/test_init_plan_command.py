"""``kilolayer init-plan``."""

import json
import re

import pytest
import typer
from typer.testing import CliRunner

from kilolayer.cli.init_plan import init_plan as command
from kilolayer.schemes import coefficients


@pytest.fixture
def run():
    app = typer.Typer()
    app.command()(command)

    def run_command(*arguments):
        return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=True)

    return run_command


def rows(result):
    assert result.exit_code == 0, result.exception
    return {re.split(r"\s{2,}", line)[0]: re.split(r"\s{2,}", line)[1:] for line in result.stdout.splitlines()}


def test_an_encoder_decoder(run):
    table = rows(run("--encoder-layers", 6, "--decoder-layers", 12, "--width", 64))
    expected = coefficients(6, 12)
    for stack, last in (("encoder", 5), ("decoder", 11)):
        path, gain = f"{stack}.layers.0..{last}.self_attn", getattr(expected, stack).init_gain
        assert [float(table[f"{path}.in_proj_weight[{part}]"][1]) for part in ("0:64", "64:128")] == [0.125, 0.125]
        assert float(table[f"{path}.in_proj_weight[128:192]"][1]) == pytest.approx(0.125 * gain, rel=1e-3)
        assert f"times the scheme's gain {gain:.4g}" in table[f"{path}.out_proj.weight"][2]
    assert "decoder.layers.0..11.multihead_attn.out_proj.weight" in table
    assert table["embedding.tokens.weight"][1] == "0.125"


def test_layers_that_differ_have_blocks_of_their_own(run):
    table = rows(run("--decoder-layers", 8, "--width", 16, "--scheme", "deepnorm", "--rule", "article"))
    spans = {name.split(".")[2] + ".." + name.split("..")[1].split(".")[0] if ".." in name else name.split(".")[2]
             for name in table if "layers." in name}  # fmt: skip
    assert spans == {"0..6", "7"}
    assert float(table["decoder.layers.7.linear1.weight"][1]) == pytest.approx(0.1 * (2 / 80) ** 0.5, rel=1e-3)


def test_an_encoder_alone_has_no_embedding(run):
    table = rows(run("--encoder-layers", 2, "--width", 16))
    assert all(name.startswith("layers.0..1.") for name in table)


def test_json_lists_every_parameter(run):
    result = run("--decoder-layers", 3, "--width", 16, "--base", "lecun", "--json")
    printed = json.loads(result.stdout)
    assert printed["format"] == 1
    assert set(printed["rows"][0]) == {"parameter", "part", "fill", "std", "value", "reason"}
    names = [row["parameter"] for row in printed["rows"]]
    assert {name.split(".")[2] for name in names if "layers" in name} == {"0", "1", "2"}
    query = next(row for row in printed["rows"] if row["part"] == [0, 16])
    assert (query["std"], query["fill"]) == (0.25, "normal")


@pytest.mark.parametrize("scheme", ["fixup", "t-fixup", "pre-ln", "rezero", "keel"])
def test_every_kind_of_model_under_other_schemes(run, scheme):
    for layers in ((2, 0), (0, 2), (2, 2)):
        assert rows(run("--encoder-layers", layers[0], "--decoder-layers", layers[1], "--width", 8, "--scheme", scheme))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--width", 8), "at least one layer"),
        (("--encoder-layers", -1), "encoder_layers must be >= 0, got -1"),
        (("--encoder-layers", 2, "--scheme", "deepnom"), "did you mean 'deepnorm'"),
        (("--encoder-layers", 2, "--rule", "deepne"), "did you mean 'deepnet'"),
        (("--encoder-layers", 2, "--base", "xaver"), "did you mean 'xavier'"),
        (("--encoder-layers", 2, "--width", 0), "width must be >= 1 and at most 1,000,000, got 0"),
        (("--encoder-layers", 2, "--width", 7), "width must be even, got 7"),
        (("--decoder-layers", 2, "--width", 7), "width must be even, got 7"),
        (("--encoder-layers", 2, "--width", 10**8), "width must be >= 1 and at most 1,000,000"),
        (("--encoder-layers", 60_000, "--decoder-layers", 60_000), "at most 100,000 layers, got 120,000"),
        (("--encoder-layers", 2, "--scheme", "admin"), "profiling pass"),
    ],
)
def test_mistakes(run, arguments, message):
    result = run(*arguments)
    assert result.exit_code == 1
    assert isinstance(result.exception, ValueError)
    assert message in str(result.exception)
