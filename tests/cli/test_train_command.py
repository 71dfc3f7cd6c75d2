"""``kilolayer train``, ``sample`` and ``translate`` as a user types them, in a process of their own."""

import io
import json
import random

import pytest
from commands import kilolayer, no_constants

from kilolayer.cli.main import main

TINY = [
    "--layers", "2", "--steps", "6",
    *(part for one in (
        "width=16", "head_width=8", "length=12", "batch_size=4", "warmup_steps=2", "eval_every=3", "save_every=3",
    ) for part in ("--set", one)),
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("training")
    draw = random.Random(0)
    text = "".join(draw.choice(["the dog ", "a cat ", "runs. ", "sees\n"]) for _ in range(600))
    (folder / "text.txt").write_text(text, encoding="utf-8")
    (folder / "pairs.tsv").write_text("".join(f"{n} dogs bark.\t{n} Hunde bellen.\n" for n in range(400)))
    return folder


@pytest.fixture(scope="module")
def language_run(folder):
    return kilolayer("train", "language", "--data", folder / "text.txt", "--out", folder / "language", *TINY, "--json")


@pytest.fixture(scope="module")
def translation_run(folder):
    small = ["--set", "vocab_size=60", "--set", "length=24"]
    return kilolayer(
        "train", "translation", "--data", folder / "pairs.tsv", "--out", folder / "translation", *TINY, *small
    )


def test_json_is_one_object_and_nothing_else(language_run):
    assert language_run.returncode == 0, language_run.stderr
    assert language_run.stderr == ""
    found = json.loads(language_run.stdout, parse_constant=no_constants)
    assert (found["format"], found["outcome"], found["step"]) == (1, "trained", 6)
    assert found["scores"]["perplexity"] > 1


def test_a_translation_run_ends_with_its_scores(translation_run):
    assert translation_run.returncode == 0, translation_run.stderr
    assert "tok:13a" in translation_run.stdout
    assert "chrf" in translation_run.stdout
    assert "held-out loss" in translation_run.stdout


def test_a_rerun_finds_the_result(folder, language_run):
    again = kilolayer("train", "language", "--data", folder / "text.txt", "--out", folder / "language", *TINY, "--json")
    assert again.stdout == language_run.stdout


def test_sampling_is_decided_by_the_seed(folder, language_run, capsys):
    command = ["sample", str(folder / "language"), "--prompt", "the dog", "--length", "20"]
    found = []
    for options in ([], [], ["--seed", "1"]):
        with pytest.raises(SystemExit):
            main([*command, *options])
        found.append(capsys.readouterr().out)
    first, again, other = found
    assert first.startswith("the dog")
    assert first == again != other
    assert len(first) == len("the dog") + 20 + 1


def test_translations_come_one_a_line(folder, translation_run):
    done = kilolayer("translate", folder / "translation", "3 dogs bark.", "7 dogs bark.")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2


def test_blank_lines_of_standard_input_stay(folder, translation_run, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("3 dogs bark.\n\n7 dogs bark.\n"))
    with pytest.raises(SystemExit) as stop:
        main(["translate", str(folder / "translation"), "--beam-size", "1"])
    assert stop.value.code == 0
    said = capsys.readouterr().out.split("\n")
    assert len(said) == 4
    assert said[1] == said[3] == ""


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["train", "langauge"], "unknown recipe 'langauge'; did you mean 'language'?"),
        (["train", "language"], "needs data"),
        (
            ["train", "language", "--data", "{text}", "--set", "widht=3"],
            "unknown setting 'widht'; did you mean 'width'?",
        ),
        (["train", "language", "--data", "{text}", "--set", "lr"], "a setting is NAME=VALUE, got 'lr'"),
        (["train", "language", "--data", "{text}", "--set", "lr=high"], "lr must be a number, got 'high'"),
        (["train", "language", "--data", "{text}", "--layers", "-3"], "decoder_layers must be >= 1, got -3"),
        (["train", "language", "--data", "{text}", "--layers", "0"], "decoder_layers must be >= 1, got 0"),
        (["train", "language", "--data", "{text}", "--steps", "0"], "--steps must be >= 1, got 0"),
        (["train", "language", "--data", "{text}", "--scheme", ""], "unknown scheme ''"),
        (["train", "language", "--data", "none.txt"], "there is no file 'none.txt'"),
        (["train", "language", "--data", "{text}", "--out", "{run}", "--scheme", "pre-ln"], "holds a run of deepnorm"),
        (["sample", "{folder}"], "holds no run of kilolayer train"),
        (["sample", "{run}", "--prompt", "Zebra"], "the character 'Z' is not in the text"),
        (["sample", "{run}", "--prompt", "the dog the dog the dog"], "the prompt has 23 tokens, more than the 12"),
        (["sample", "{run}", "--prompt", "the \udcff"], "the prompt is not UTF-8 (character 5)"),
        (["sample", "{run}", "--top-k", "-1"], "--top-k must be >= 0, got -1"),
        (["translate", "{run}", "a"], "holds a run of language, not of translation; use kilolayer sample"),
    ],
    ids=lambda value: None if isinstance(value, str) else "-".join(value[:4]).replace("{", "").replace("}", ""),
)
def test_mistakes_are_one_line(folder, language_run, capsys, command, message):
    places = {"text": folder / "text.txt", "run": folder / "language", "folder": folder}
    with pytest.raises(SystemExit) as stop:
        main([part.format(**places) for part in command])
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.startswith("kilolayer: ")
    assert len(said.splitlines()) == 1


def test_the_smallest_temperature_takes_the_likeliest(folder, language_run, capsys):
    found = []
    for temperature in ("0", "1e-320"):
        with pytest.raises(SystemExit) as stop:
            main(["sample", str(folder / "language"), "--length", "5", "--temperature", temperature])
        assert stop.value.code == 0
        found.append(capsys.readouterr().out)
    assert found[0] == found[1]


def test_a_long_sentence_is_refused_by_its_number(folder, translation_run, capsys):
    with pytest.raises(SystemExit):
        main(["translate", str(folder / "translation"), "3 dogs bark.", "dogs " * 40])
    said = capsys.readouterr().err
    assert "sentence 2 has" in said
    assert "more than the 24 the model was trained on" in said


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("train", {"--data", "--scheme", "--layers", "--steps", "--set", "--out", "--json"}),
        ("sample", {"--prompt", "--length", "--temperature", "--top-k", "--seed"}),
        ("translate", {"--beam-size"}),
    ],
)
def test_options_are_the_frozen_ones(command, options, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    words = {word.strip(",") for line in capsys.readouterr().out.splitlines() for word in line.split()[:1]}
    assert {word for word in words if word.startswith("--")} == options
