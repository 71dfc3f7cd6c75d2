"""Saved Hugging Face models: everything that does not fit is refused before it is loaded, and nothing is left behind."""

import json

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from kilolayer.convert.directory import convert_directory, load_directory, plan_directory
from kilolayer.convert.example_inputs import example_inputs
from kilolayer.convert.verify import largest_difference, run_once

transformers = pytest.importorskip("transformers")

SIZES = {"vocab_size": 50, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
T5 = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, "vocab_size": 50}
MODELS = {
    "BERT": lambda: transformers.BertModel(transformers.BertConfig(num_hidden_layers=2, **SIZES)),
    "tied head": lambda: transformers.BertForMaskedLM(transformers.BertConfig(num_hidden_layers=2, **SIZES)),
    "tied embeddings": lambda: transformers.T5ForConditionalGeneration(
        transformers.T5Config(decoder_start_token_id=0, **T5)
    ),
    "shared layer": lambda: transformers.AlbertModel(
        transformers.AlbertConfig(num_hidden_layers=6, embedding_size=8, **SIZES)
    ),
    "head of its own": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(num_hidden_layers=2, tie_word_embeddings=False, **SIZES)
    ),
}


@pytest.fixture(autouse=True)
def no_progress_bars():
    from transformers.utils import logging

    logging.disable_progress_bar()


def save(name, folder, **options):
    torch.manual_seed(0)
    model = MODELS[name]()
    model.save_pretrained(folder, **options)
    return model.eval()


@pytest.mark.parametrize("shards", [{}, {"max_shard_size": "5KB"}], ids=["one file", "shards"])
@pytest.mark.parametrize("name", MODELS)
def test_what_the_library_saved_is_read(name, shards, tmp_path):
    model = save(name, tmp_path / "saved", **shards)
    again = load_directory(tmp_path / "saved")
    inputs = example_inputs(model)
    assert type(again) is type(model)
    assert largest_difference([run_once(model, inputs)], [run_once(again, inputs)]) == 0


def edit_config(folder, **values):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))


def edit_tensors(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


WEIGHT = "encoder.layer.1.output.dense.weight"
ENTRY = {
    "format": 1, "scheme": "deepnorm", "rule": "deepnet", "encoder_layers": 2, "decoder_layers": 0,
    "encoder_branches_per_layer": 2, "decoder_branches_per_layer": None, "form": "carried",
}  # fmt: skip
FAULTS = {
    "a weight less": (lambda f: edit_tensors(f, lambda t: t.pop(WEIGHT)), f"lacks {WEIGHT}, which a BertModel"),
    "a weight more": (
        lambda f: edit_tensors(f, lambda t: t.update(more=torch.zeros(2))), "holds more, unknown to a BertModel"
    ),
    "another name": (
        lambda f: edit_tensors(f, lambda t: t.update({"é": t.pop(WEIGHT)})), f"lacks {WEIGHT}, which a BertModel"
    ),
    "another shape": (
        lambda f: edit_tensors(f, lambda t: t.update({WEIGHT: torch.zeros(3, 3)})), f"{WEIGHT} has shape .3, 3."
    ),
    "all foreign": (
        lambda f: save_file({"x": torch.zeros(2)}, f / "model.safetensors", metadata={"format": "pt"}), "lacks .* more"
    ),
    "too few layers": (lambda f: edit_config(f, num_hidden_layers=1), "holds .* more, unknown to a BertModel"),
    "too many layers": (lambda f: edit_config(f, num_hidden_layers=3), "lacks .* more, which a BertModel"),
    "endless layers": (lambda f: edit_config(f, num_hidden_layers=10**9), "num_hidden_layers = 1000000000"),
    "other sizes": (lambda f: edit_config(f, hidden_size=32), "its config says"),
    "sizes that do not fit": (lambda f: edit_config(f, num_attention_heads=3), "no BertModel can be built"),
    "a size that is text": (lambda f: edit_config(f, hidden_size="16"), "describes no model of this transformers"),
    "another type": (lambda f: edit_config(f, model_type="nothing"), "describes no model of this transformers"),
    "unknown class": (lambda f: edit_config(f, architectures=["FooModel"]), "has no model 'FooModel'"),
    "a function": (lambda f: edit_config(f, architectures=["pipeline"]), "has no model 'pipeline'"),
    "a number": (lambda f: edit_config(f, architectures=[5]), "has no model 5"),
    "its own code": (lambda f: edit_config(f, auto_map={"AutoModel": "x.Y"}), "needs Python code of its own"),
    "a list": (lambda f: (f / "config.json").write_text("[]"), "holds a list, not a table"),
    "no text": (lambda f: (f / "config.json").write_bytes(b"\xff\xfe{}"), "is no JSON"),
    "scheme is text": (lambda f: edit_config(f, kilolayer="yes"), "names no scheme"),
    "scheme of later": (lambda f: edit_config(f, kilolayer={"format": 2}), "has format 2, this version reads 1"),
    "scheme half": (lambda f: edit_config(f, kilolayer={"format": 1}), "is broken"),
    "scheme unknown": (lambda f: edit_config(f, kilolayer={**ENTRY, "scheme": "x"}), "broken .unknown scheme 'x'"),
    "form unknown": (lambda f: edit_config(f, kilolayer={**ENTRY, "form": "x"}), "form 'x', which is not known"),
    "depth unknown": (lambda f: edit_config(f, kilolayer={**ENTRY, "encoder_layers": "2"}), "is broken"),
    "no numbers": (
        lambda f: edit_tensors(f, lambda t: t[WEIGHT].fill_(float("nan"))), "returns no finite number before"
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_what_does_not_fit_is_refused_and_nothing_written(fault, tmp_path):
    break_it, message = FAULTS[fault]
    save("BERT", tmp_path / "saved")
    break_it(tmp_path / "saved")
    with pytest.raises(ValueError, match=message):
        convert_directory(tmp_path / "saved", tmp_path / "new" / "out", "deepnorm")
    assert [one.name for one in tmp_path.iterdir()] == ["saved"]


def test_a_name_in_any_script(tmp_path):
    model = save("BERT", tmp_path / "重み é")
    done = convert_directory(tmp_path / "重み é", tmp_path / "выход" / "ü", "deepnorm")
    assert done.max_difference < 1e-5
    inputs = example_inputs(model)
    again = load_directory(tmp_path / "выход" / "ü")
    assert largest_difference([run_once(model, inputs)], [run_once(again, inputs)]) < 1e-5


@pytest.mark.parametrize("place", ["saved", "saved/new", "dangling"])
def test_an_output_that_would_overwrite(place, tmp_path):
    save("BERT", tmp_path / "saved")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises((FileExistsError, ValueError), match="is there already|lies inside of"):
        convert_directory(tmp_path / "saved", tmp_path / place, "deepnorm")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("error", [SafetensorError("No space left on device"), OSError(28, "No space left on device")])
def test_a_full_disk_leaves_nothing(error, tmp_path, monkeypatch):
    save("BERT", tmp_path / "saved")

    def full(self, folder, **options):
        (folder / "model.safetensors").write_bytes(b"half")
        raise error

    monkeypatch.setattr(transformers.BertModel, "save_pretrained", full)
    with pytest.raises(OSError, match="No space left on device"):
        convert_directory(tmp_path / "saved", tmp_path / "new" / "out", "deepnorm")
    assert [one.name for one in tmp_path.iterdir()] == ["saved"]


def test_a_plan_writes_nothing(tmp_path):
    save("BERT", tmp_path / "saved")
    before = sorted(tmp_path.rglob("*"))
    assert plan_directory(tmp_path / "saved", "deepnorm").changes[0].new_skip_scale == 4**0.25
    assert sorted(tmp_path.rglob("*")) == before


def test_what_stands_beside_the_model_comes_along_but_no_stale_weights(tmp_path):
    folder = tmp_path / "saved"
    save("BERT", folder)
    modules = [{"path": ""}, {"path": "1_Pooling"}, {"path": "../outside"}, {"path": "gone"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "outside").mkdir()
    for name in ("1_Pooling", "checkpoint-5", "onnx"):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text("{}")
    (folder / "1_Pooling" / "link").symlink_to(tmp_path / "outside")
    for name in ("vocab.txt", "pytorch_model.bin", "tf_model.h5"):
        (folder / name).write_text("x")
    convert_directory(folder, tmp_path / "out", "deepnorm")
    found = {str(one.relative_to(tmp_path / "out")) for one in (tmp_path / "out").rglob("*") if one.is_file()}
    wanted = {"config.json", "model.safetensors", "modules.json", "vocab.txt", "1_Pooling/config.json"}
    assert found == wanted


@pytest.mark.parametrize("listed", ["{", "[1]", "{}", '[{"path": 3}]', "null"])
def test_a_broken_list_of_modules_names_none(listed, tmp_path):
    save("BERT", tmp_path / "saved")
    (tmp_path / "saved" / "modules.json").write_text(listed)
    convert_directory(tmp_path / "saved", tmp_path / "out", "deepnorm")
    assert (tmp_path / "out" / "modules.json").read_text() == listed
