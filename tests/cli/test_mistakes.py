"""What a user mistypes: one line, exit status 2, the option's own name, the nearest name that exists."""

import pytest

from kilolayer.cli.main import main
from kilolayer.cli.mistakes import name_options

NAMES = {"blocks": "--blocks", "layers": "--layers", "batch_size": "--batch-size", "norm": "--norm", "rule": "--rule"}


@pytest.fixture
def refuse(capsys):
    def run(*arguments):
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        assert stop.value.code == 2
        assert printed.out == ""
        assert len(printed.err.splitlines()) == 1
        assert printed.err.startswith("kilolayer: ")
        return printed.err.removeprefix("kilolayer: ").strip()

    return run


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["predict", "--blok", 3], "unknown option --blok; did you mean '--blocks'?"),
        (["predict", "--blok=3"], "unknown option --blok; did you mean '--blocks'?"),
        (["lab", "wirings", "--batchsize", 8], "unknown option --batchsize; did you mean '--batch-size'?"),
        (["predict", "--zzz"], "unknown option --zzz; see kilolayer predict --help"),
        (["predict", "-x"], "unknown option -x; see kilolayer predict --help"),
        (["structure"], "Missing argument 'FILE.py:FUNCTION'; see kilolayer structure --help"),
        (["structure", "a", "b"], "unexpected 'b'; see kilolayer structure --help"),
        (["--zzz"], "unknown option --zzz; see kilolayer --help"),
        (["predict", "--blocks"], "--blocks needs a value"),
        (["predict", "--json=3"], "--json takes no value"),
        (["predict", "--blocks", "x"], "--blocks must be a whole number, got 'x'"),
        (["predict", "--blocks=1.5"], "--blocks must be a whole number, got '1.5'"),
        (["predict", "--blocks", 3, "--blocks", ""], "--blocks must be a whole number, got ''"),
        (["check", "a.py:b", "--out", ""], "--out is empty; name a file or folder, or leave it out"),
        (["check", "a.py:b", "--sarif="], "--sarif is empty; name a file or folder, or leave it out"),
        (["lab", "wirings", "--data", "", "--steps", 2], "--data is empty; name a file or folder, or leave it out"),
        (["lab", "wirings", "--lr", "fast"], "--lr must be a number, got 'fast'"),
        (
            ["lab", "wirings", "--norm", "lyer"],
            "--norm must be one of layer, rms, batch, got 'lyer'; did you mean 'layer'?",
        ),
        (["lab", "wirings", "--norm", "9"], "--norm must be one of layer, rms, batch, got '9'"),
        (["predikt"], "unknown command 'predikt'; did you mean 'predict'?"),
        (["lab", "wirngs"], "unknown command 'wirngs'; did you mean 'wirings'?"),
        (["lab", "zzz"], "unknown command 'zzz'; see kilolayer lab --help"),
        (
            ["predict", "64"],
            "unexpected '64': everything here is an option, --NAME VALUE; see kilolayer predict --help",
        ),
    ],
)
def test_what_the_parser_refuses(refuse, arguments, line):
    assert refuse(*arguments) == line


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["predict", "--blocks", 0], "--blocks must be >= 1, got 0"),
        (["predict", "--layers", -1], "--layers must be >= 1, got -1"),
        (["predict", "--blocks", 2, "--width", 0], "--width must be >= 1, got 0"),
        (["predict", "--blocks", 2, "--norm", "group"], "--norm 'group' is unknown; use one of layer, rms, batch"),
        (["predict", "--blocks", 2, "--rule", "deepne"], "--rule: unknown rule 'deepne'; did you mean 'deepnet'?"),
        (["predict", "--blocks", 2, "--scheme", "prenorm"], "--scheme: unknown scheme 'prenorm'; did you mean 'pre-ln'?"),
        (
            ["predict", "--blocks", 2, "--scheme", "pre-ln", "--rule", "deepnet"],
            "--scheme 'pre-ln' has no rules to choose from, got --rule 'deepnet'",
        ),
        (["coefficients", "--encoder-layers", -1], "--encoder-layers must be >= 0, got -1"),
        (
            ["coefficients"],
            "a network needs at least one layer; got --encoder-layers 0 and --decoder-layers 0",
        ),
        (["init-plan", "--encoder-layers", 2, "--base", "glorot"], "--base: unknown base rule 'glorot'; did you mean 'xavier'?"),
        (["lab", "wirings", "--blocks", 0], "--blocks must be >= 1, got 0"),
        (["lab", "wirings", "--steps", 0], "--steps must be >= 1, got 0"),
        (["lab", "wirings", "--batch-size", 1], "--batch-size must be >= 2, got 1"),
        (["lab", "wirings", "--wiring", "pre-ln"], "--wiring: unknown wiring 'pre-ln'; did you mean 'prenorm'?"),
        (["lab", "wirings", "--data", "fmnist"], "--data: unknown data 'fmnist'; did you mean 'fashion-mnist'?"),
    ],
)  # fmt: skip
def test_what_the_library_refuses_is_said_of_the_option(refuse, tmp_path, monkeypatch, arguments, line):
    monkeypatch.chdir(tmp_path)
    assert refuse(*arguments) == line
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("command", "digits"), [(["coefficients", "--encoder-layers"], 400), (["predict", "--blocks"], 11)]
)
def test_huge_numbers_are_refused_at_once(refuse, command, digits):
    assert refuse(*command, "9" * digits) == (
        f"{command[1]} must be at most 1,000,000,000, got a number of {digits} digits"
    )


def test_numbers_past_what_python_prints_are_refused_too(refuse):
    assert refuse("predict", "--blocks", "9" * 5000).startswith("--blocks must be ")


def test_no_command_at_all_shows_the_help(capsys):
    for arguments in ([], ["lab"]):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 2
        assert "Commands:" in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ("num_blocks must be >= 1, got 0", "--blocks must be >= 1, got 0"),
        ("the stack has num_blocks and batch_size.", "the stack has --blocks and --batch-size."),
        ("norm_kind 'group' is unknown", "--norm 'group' is unknown"),
        ("got norm='group' and rule=None", "got --norm 'group' and --rule None"),
        ("a norm of 2 blocks, whatever the rule", "a norm of 2 blocks, whatever the rule"),
        ("blocks_of_rock and my_num_blocks stay", "blocks_of_rock and my_num_blocks stay"),
        ("'num_blocks' is no path", "'num_blocks' is no path"),
        ("/data/batch_size/x and batch_size.npz stay", "/data/batch_size/x and batch_size.npz stay"),
        ("unknown rule 'x'", "--rule: unknown rule 'x'"),
        ("unknown stack 'x'", "unknown stack 'x'"),
    ],
)
def test_parameters_become_options_and_words_stay_words(message, named):
    assert name_options(message, NAMES) == named


def test_what_the_user_typed_stays_as_it_is():
    message = "my batch_size file holds no rows; batch_size is 3"
    named = name_options(message, NAMES, values=["my batch_size file", "3", "batch_size"])
    assert named == "my batch_size file holds no rows; --batch-size is 3"


def test_of_two_options_the_one_that_was_given_is_named():
    assert name_options("num_layers is 3", NAMES, typed=["blocks"]) == "--blocks is 3"
    assert name_options("num_layers is 3", NAMES, typed=["layers"]) == "--layers is 3"
