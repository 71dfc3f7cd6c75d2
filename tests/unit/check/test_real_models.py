"""Real models at random initialization, over a short run: nothing is reported."""

import pytest
import torch
from torch import nn

import kilolayer as kl

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
transformers = pytest.importorskip("transformers")

VOCABULARY, WIDTH, LENGTH, BATCH = 48, 32, 10, 8
STEPS = 20


def token_batch(**more):
    tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH), generator=torch.Generator().manual_seed(1))
    return {"input_ids": tokens, "labels": tokens.clone(), **more}


def bert():
    config = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=3, num_attention_heads=2, intermediate_size=64
    )
    return transformers.BertForMaskedLM(config), token_batch()


def gpt2():
    config = transformers.GPT2Config(vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=3, n_head=2, n_positions=LENGTH)
    return transformers.GPT2LMHeadModel(config), token_batch()


def llama():
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=2,
        intermediate_size=64,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config), token_batch()


def t5():
    config = transformers.T5Config(
        vocab_size=VOCABULARY, d_model=WIDTH, d_kv=16, d_ff=64, num_layers=2, num_heads=2, decoder_start_token_id=0
    )
    return transformers.T5ForConditionalGeneration(config), token_batch()


def vit():
    config = transformers.ViTConfig(
        hidden_size=WIDTH, num_hidden_layers=3, num_attention_heads=2, intermediate_size=64, image_size=16, patch_size=4
    )
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(BATCH) % 2
    pixels = torch.randn(BATCH, 3, 16, 16, generator=generator) + labels[:, None, None, None]
    return transformers.ViTForImageClassification(config), {"pixel_values": pixels, "labels": labels}


def torch_transformer():
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 64, batch_first=True)
    model = nn.Sequential(
        nn.Embedding(VOCABULARY, WIDTH), nn.TransformerEncoder(layer, 3), nn.Linear(WIDTH, VOCABULARY)
    )
    tokens = token_batch()["input_ids"]
    return model, (tokens, tokens), lambda out, target: nn.functional.cross_entropy(out.flatten(0, 1), target.flatten())


@pytest.mark.parametrize("make", [bert, gpt2, llama, t5, vit, torch_transformer])
def test_a_real_model_at_random_initialization_is_healthy(make):
    torch.manual_seed(0)
    model, batch, *loss_fn = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    setup = kl.Setup(model, batch, *loss_fn, optimizer=optimizer)
    diagnosis = kl.check(setup, steps=STEPS)
    assert diagnosis.root is None, diagnosis.root
    assert diagnosis.recording.facts["examination"]["run"]["num_steps"] == STEPS
    model.zero_grad()
    assert kl.check(kl.Setup(model, batch, *loss_fn)).root is None
