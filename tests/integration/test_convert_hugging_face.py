"""Hugging Face models under other schemes: same class, trained and saved by the library's own means."""

from functools import partial

import pytest
import torch

from kilolayer.convert import apply_conversion, audit, load_pretrained, plan_conversion, redepth, restore_scheme
from kilolayer.convert.example_inputs import example_inputs
from kilolayer.convert.verify import largest_difference, run_once

transformers = pytest.importorskip("transformers")

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
TEXT = {"vocab_size": 50, **SIZES}
BUILD = {
    "BERT": ("BertForMaskedLM", "BertConfig", TEXT),
    "RoBERTa": ("RobertaForMaskedLM", "RobertaConfig", {**TEXT, "max_position_embeddings": 40}),
    "GPT-2": (
        "GPT2LMHeadModel", "GPT2Config",
        {"vocab_size": 50, "n_embd": 16, "n_layer": 2, "n_head": 2, "bos_token_id": 1, "eos_token_id": 1},
    ),
    "Llama": ("LlamaForCausalLM", "LlamaConfig", {**TEXT, "num_key_value_heads": 1}),
    "T5": (
        "T5ForConditionalGeneration", "T5Config",
        {"vocab_size": 50, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0},
    ),
    "BART": (
        "BartForConditionalGeneration", "BartConfig",
        {
            "vocab_size": 50, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
            "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 32,
        },
    ),
    "ViT": ("ViTModel", "ViTConfig", {**SIZES, "image_size": 8, "patch_size": 4, "num_channels": 3}),
}  # fmt: skip
CARRIED = {"BERT", "RoBERTa", "BART"}
"""Post-norm models carry DeepNorm as a factor, and what they save is folded."""


@pytest.fixture(autouse=True)
def no_progress_bars():
    from transformers.utils import logging

    logging.disable_progress_bar()


def build(name):
    model_name, config_name, sizes = BUILD[name]
    torch.manual_seed(0)
    return getattr(transformers, model_name)(getattr(transformers, config_name)(**sizes))


def fresh(name, scheme):
    model = build(name)
    plan = plan_conversion(model, scheme, fresh=True)
    apply_conversion(model, plan)
    return model, plan


def step(model):
    """One training step on every parameter."""
    model.train()
    out = model(**example_inputs(model))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss = sum(one.float().pow(2).mean() for one in out.values() if isinstance(one, torch.Tensor))
    loss.backward()
    assert [key for key, one in model.named_parameters() if one.grad is None and "pooler" not in key] == []
    optimizer.step()
    model.eval()


@pytest.mark.parametrize("name", BUILD)
def test_deepnorm_trains_and_comes_back_from_disk(name, tmp_path):
    model, plan = fresh(name, "deepnorm")
    assert plan.form == ("carried" if name in CARRIED else "rewired")
    assert isinstance(model, getattr(transformers, BUILD[name][0]))
    step(model)
    inputs = example_inputs(model)
    wanted = run_once(model, inputs)
    model.save_pretrained(tmp_path)
    again = load_pretrained(type(build(name)), tmp_path)
    assert again.config.kilolayer["scheme"] == "deepnorm"
    assert largest_difference([wanted], [run_once(again, inputs)]) <= 1e-5
    step(again)

    if name in CARRIED:
        plain = type(build(name)).from_pretrained(tmp_path)
        assert largest_difference([wanted], [run_once(plain, inputs)]) <= 1e-5
        assert largest_difference([wanted], [run_once(restore_scheme(plain), inputs)]) <= 1e-5
    else:
        with pytest.raises(RuntimeError, match="mismatch"):
            type(build(name)).from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        ("BERT", "pre-ln"),
        ("GPT-2", "sandwich-ln"),
        ("Llama", "keel"),
        ("T5", "rezero"),
        ("Llama", "sub-ln"),
        ("Llama", "fixup"),
        ("BERT", "t-fixup"),
        ("T5", "admin"),
        ("BART", "b2t"),
    ],
)
def test_other_schemes_come_back_from_disk(name, scheme, tmp_path):
    model, plan = fresh(name, scheme)
    assert plan.form == "rewired"
    step(model)
    inputs = example_inputs(model)
    model.save_pretrained(tmp_path)
    again = load_pretrained(type(build(name)), tmp_path)
    assert largest_difference([run_once(model, inputs)], [run_once(again, inputs)]) == 0
    with pytest.raises(RuntimeError, match="mismatch"):
        type(build(name)).from_pretrained(tmp_path)


def test_fixup_and_t_fixup_scale_what_stands_around_the_branches():
    model, plan = fresh("Llama", "fixup")
    assert not model.lm_head.weight.any()
    assert "starts the head at zero" in plan.render()
    with pytest.raises(ValueError, match="tied to its embeddings; build it with tie_word_embeddings=False"):
        fresh("GPT-2", "fixup")
    model, plan = fresh("GPT-2", "t-fixup")
    wanted = plan.scheme.embedding_gain(plan.depth, "encoder") * 16**-0.5
    assert model.transformer.wte.weight.std().item() == pytest.approx(wanted, rel=0.1)


@pytest.mark.parametrize("name", ["GPT-2", "Llama", "T5", "BART"])
def test_generation_with_a_cache_and_without_agree(name):
    model, _ = fresh(name, "deepnorm")
    model.eval()
    inputs = {"input_ids": torch.tensor([[5, 9, 14, 22]])}
    options = {"max_new_tokens": 4, "do_sample": False, "num_beams": 1}
    with_cache = model.generate(**inputs, use_cache=True, **options)
    assert torch.equal(with_cache, model.generate(**inputs, use_cache=False, **options))


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning")
def test_gradient_checkpointing_gives_the_same_gradients():
    model, _ = fresh("GPT-2", "deepnorm")
    inputs = example_inputs(model)
    grads = []
    for enabled in (False, True):
        if enabled:
            model.gradient_checkpointing_enable()
        model.train()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        model.zero_grad()
        model(**inputs).logits.pow(2).mean().backward()
        grads.append(model.transformer.h[0].mlp.c_proj.weight.grad.clone())
    torch.testing.assert_close(*grads)


def test_a_trained_models_weights_are_folded_on_disk_and_its_config_says_the_scheme(tmp_path):
    model = build("BERT")
    plain_before = run_once(model, example_inputs(model))
    saved = {name: value.clone() for name, value in model.state_dict().items()}
    apply_conversion(model, plan_conversion(model, "deepnorm", rule="three-l"))
    model.save_pretrained(tmp_path)
    plain = transformers.BertForMaskedLM.from_pretrained(tmp_path)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(value, saved[name], rtol=1e-6, atol=1e-9)
    assert plain.config.kilolayer["rule"] == "three-l"
    restored = restore_scheme(plain)
    assert plan_conversion(restored, "post-ln").changes[0].old_skip_scale == pytest.approx(6**0.25)
    assert largest_difference([plain_before], [run_once(restored, example_inputs(model))]) <= 1e-6


class Classifier(torch.nn.Module):
    """Somebody's model around one of the library's."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.head = torch.nn.Linear(16, 3)

    def forward(self, **inputs):
        return self.head(self.inner(**inputs)[0])


@pytest.mark.parametrize("wrap", [Classifier, partial(torch.compile, backend="eager")], ids=["module", "compiled"])
def test_a_model_inside_of_another_is_saved_with_its_scheme(wrap, tmp_path):
    inner = build("BERT").bert
    inputs = example_inputs(inner)
    model = wrap(inner)
    apply_conversion(model, plan_conversion(model, "deepnorm", inputs=inputs))
    redepth(model, 4, inputs=inputs)
    wanted = run_once(inner, inputs)
    inner.save_pretrained(tmp_path)
    again = load_pretrained(transformers.BertModel, tmp_path)
    # An MLM's BERT has no pooler, which the library then adds.
    assert largest_difference([wanted[:1]], [run_once(again, inputs)[:1]]) <= 1e-5
    assert again.encoder.layer[3].output.dense.branch_scale == pytest.approx(8**-0.25)


@pytest.mark.parametrize("name", BUILD)
def test_another_depth_comes_back_from_disk(name, tmp_path):
    model = build(name)
    if name in CARRIED:
        apply_conversion(model, plan_conversion(model, "deepnorm"))
    inputs = example_inputs(model)
    before = run_once(model, inputs)
    done = redepth(model, 5)
    assert done.max_difference <= 1e-5
    wanted = run_once(model, inputs)
    model.save_pretrained(tmp_path)
    load = type(model).from_pretrained if name not in CARRIED else partial(load_pretrained, type(model))
    again = load(tmp_path)
    assert largest_difference([wanted], [run_once(again, inputs)]) <= 1e-6
    assert largest_difference([before], [run_once(again, inputs)]) <= 1e-5
    audited = {check.name: check.verdict for check in audit(again, "deepnorm" if name in CARRIED else "pre-ln").checks}
    assert audited["skip-scale"] == "ok"


def test_files_that_lack_a_tensor_are_refused(tmp_path):
    from safetensors.torch import load_file, save_file

    model, _ = fresh("GPT-2", "sandwich-ln")
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    gone = next(name for name in tensors if "kilolayer_end_norm" in name)
    save_file({name: value for name, value in tensors.items() if name != gone}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=f"does not fit a GPT2LMHeadModel of its config: .*{gone}"):
        load_pretrained(transformers.GPT2LMHeadModel, tmp_path)


def test_what_names_no_scheme_is_not_restored(tmp_path):
    model = build("BERT")
    with pytest.raises(ValueError, match="names no scheme"):
        restore_scheme(model)
    model.config.kilolayer = {"format": 2}
    with pytest.raises(ValueError, match="has format 2, this version reads 1"):
        restore_scheme(model)


def test_a_rewired_model_is_not_restored_from_plain_weights():
    model, _ = fresh("GPT-2", "deepnorm")
    with pytest.raises(ValueError, match=r"load it with kilolayer\.convert\.load_pretrained"):
        restore_scheme(model)
