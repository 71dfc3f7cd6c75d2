"""``kilolayer convert`` and ``kilolayer audit``."""

import json

import pytest
import torch
from commands import kilolayer, no_constants

from kilolayer.cli.main import main
from kilolayer.convert import load_pretrained

transformers = pytest.importorskip("transformers")
SIZES = {"vocab_size": 50, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
INPUTS = {"input_ids": torch.arange(3, 10)[None]}


@pytest.fixture
def bert(tmp_path):
    torch.manual_seed(0)
    model = transformers.BertModel(transformers.BertConfig(num_hidden_layers=2, **SIZES))
    model.save_pretrained(tmp_path / "bert")
    (tmp_path / "bert" / "vocab.txt").write_text("words")
    return tmp_path / "bert"


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main([str(one) for one in arguments])
    return stop.value.code or 0, capsys.readouterr()


def test_a_saved_model_becomes_deepnorm(bert, capsys, tmp_path):
    status, printed = run(capsys, "convert", bert, "--scheme", "deepnorm", "--out", tmp_path / "deep")
    assert status == 0
    assert printed.out.startswith("BertModel to deepnorm (deepnet): 4 residual branches, outputs kept\n")
    assert "skip scale 1 -> 1.41421" in printed.out
    assert (tmp_path / "deep" / "vocab.txt").read_text() == "words"
    model = load_pretrained(transformers.BertModel, tmp_path / "deep")
    plain = transformers.BertModel.from_pretrained(tmp_path / "deep").eval()
    source = transformers.BertModel.from_pretrained(bert).eval()
    with torch.no_grad():
        wanted = source(**INPUTS).last_hidden_state
        assert torch.allclose(model.eval()(**INPUTS).last_hidden_state, wanted, atol=1e-6)
        assert torch.allclose(plain(**INPUTS).last_hidden_state, wanted, atol=1e-6)
    assert model.encoder.layer[0].output.dense.branch_scale == pytest.approx(4**-0.25)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["bert", "deep"]


def test_and_back(bert, capsys, tmp_path):
    run(capsys, "convert", bert, "--scheme", "deepnorm", "--out", tmp_path / "deep")
    status, printed = run(capsys, "convert", tmp_path / "deep", "--scheme", "post-ln", "--out", tmp_path / "plain")
    assert status == 0
    assert "skip scale 1.41421 -> 1" in printed.out
    assert "kilolayer" not in json.loads((tmp_path / "plain" / "config.json").read_text())


def test_without_a_directory_the_plan_is_shown_and_nothing_written(bert, capsys, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    status, printed = run(capsys, "convert", bert, "--scheme", "deepnorm", "--rule", "glm130b")
    assert status == 0
    assert printed.out.endswith("nothing was written; name a directory with --out\n")
    assert sorted(tmp_path.rglob("*")) == before


def test_json_is_one_object(bert, capsys, tmp_path):
    status, printed = run(capsys, "convert", bert, "--scheme", "deepnorm", "--out", tmp_path / "deep", "--json")
    found = json.loads(printed.out, parse_constant=no_constants)
    assert status == 0
    assert found["format"] == 1
    assert found["max_difference"] < 1e-6
    assert [change["new_skip_scale"] for change in found["changes"]] == [4**0.25] * 4
    assert set(found["names"].values()) == set(found["names"])


def test_mistakes_are_one_line_and_leave_nothing(bert, capsys, tmp_path):
    (tmp_path / "there").mkdir()
    gpt = transformers.GPT2Model(transformers.GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2))
    gpt.save_pretrained(tmp_path / "gpt")
    (tmp_path / "pickled").mkdir()
    torch.save({"a": torch.zeros(1)}, tmp_path / "pickled" / "pytorch_model.bin")
    before = sorted(tmp_path.iterdir())
    out = ("--out", tmp_path / "new")
    for arguments, message in {
        (bert, "--scheme", "deepnorm", "--out", tmp_path / "there"): "is there already",
        (bert, "--scheme", "deepnrm", *out): "did you mean 'deepnorm'?",
        (bert, "--scheme", "pre-ln", *out): "no way to 'pre-ln' that keeps its outputs",
        (tmp_path / "gpt", "--scheme", "deepnorm", *out): "is pre-norm",
        (tmp_path / "pickled", "--scheme", "deepnorm", *out): "a pickle can run code when it is loaded",
        (tmp_path / "nowhere", "--scheme", "deepnorm", *out): "no such directory",
    }.items():
        status, printed = run(capsys, "convert", *arguments)
        lines = [line for line in printed.err.splitlines() if line.startswith("kilolayer: ")]
        assert status == 2
        assert printed.out == ""
        assert len(lines) == 1
        assert message in lines[0]
        assert sorted(tmp_path.iterdir()) == before


FILE = """
import torch
from kilolayer import nn

def right():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, scheme="deepnorm")
    return nn.TransformerEncoder(layer, 4), (torch.randn(5, 2, 32),)

def copied():
    model, inputs = right()
    for layer in model.layers[1:]:
        layer.load_state_dict(model.layers[0].state_dict())
    return model, inputs
"""


def test_audit_of_a_function(capsys, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    status, printed = run(capsys, "audit", f"{path}:right")
    assert status == 0
    assert printed.out.startswith("deepnorm (deepnet), 4 encoder layers: nothing wrong\n")
    status, printed = run(capsys, "audit", f"{path}:copied", "--json")
    found = json.loads(printed.out, parse_constant=no_constants)
    assert status == 1
    assert [check["name"] for check in found["checks"] if check["verdict"] == "fault"] == ["identical-layers"]


def test_audit_of_a_saved_model(bert, capsys, tmp_path):
    status, printed = run(capsys, "audit", bert)
    assert status == 1
    assert "there is no skip scale at all" in printed.out
    run(capsys, "convert", bert, "--scheme", "deepnorm", "--out", tmp_path / "deep")
    _, printed = run(capsys, "audit", tmp_path / "deep", "--json")
    verdicts = {check["name"]: check["verdict"] for check in json.loads(printed.out)["checks"]}
    assert verdicts["skip-scale"] == verdicts["stored-depth"] == "ok"


def test_what_is_neither_function_nor_folder(capsys):
    status, printed = run(capsys, "audit", "model.pt")
    assert status == 2
    assert "expected FILE.py:FUNCTION or the folder of a saved model, got 'model.pt'" in printed.err


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("convert", {"--scheme", "--rule", "--out", "--json", "--help"}),
        ("audit", {"--scheme", "--rule", "--json", "--help"}),
    ],
)
def test_options_are_the_frozen_ones(command, options):
    text = kilolayer(command, "--help").stdout
    found = {word.rstrip(",:;") for word in text.split() if word.startswith("--")}
    assert found == options
