"""Remedies on models that nobody here wrote."""

import pytest
import torch

from kilolayer import Setup
from kilolayer.check import examine, train
from kilolayer.diagnosis.cards import report
from kilolayer.diagnosis.examined import Examined
from kilolayer.remedies import prove

transformers = pytest.importorskip("transformers")

TOKENS = torch.randint(0, 30, (8, 10), generator=torch.Generator().manual_seed(0))


def loss_of(model, batch):
    return model(**batch).loss


def deep_bert():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=30, hidden_size=32, num_hidden_layers=12, num_attention_heads=2, intermediate_size=64,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.15, max_position_embeddings=16,
    )  # fmt: skip
    model = transformers.BertForMaskedLM(config)
    batch = {"input_ids": TOKENS, "labels": (TOKENS + TOKENS.roll(1, 1)) % 30}
    return Setup(model, (batch, None), compute_loss=of_inputs, optimizer=torch.optim.Adam(model.parameters(), lr=5e-3))


def of_inputs(model, batch):
    return loss_of(model, batch[0])


def fast_gpt2():
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=30, n_embd=32, n_layer=2, n_head=2, n_positions=16, bos_token_id=0, eos_token_id=0,
        loss_type="ForCausalLMLoss",
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config)
    batch = {"input_ids": TOKENS, "labels": TOKENS}
    return Setup(model, batch, compute_loss=loss_of, optimizer=torch.optim.AdamW(model.parameters(), lr=1.0))


@pytest.mark.parametrize(
    ("build", "cause", "sites", "expected"),
    [
        (deep_bert, "post-norm-too-deep", ("bert.encoder.layer.0", "bert.encoder.layer.11"), {"deepnorm", "pre-ln with final norm"}),
        (fast_gpt2, "lr-too-high", (), {"lower learning rate"}),
    ],
    ids=["bert", "gpt2"],
)  # fmt: skip
def test_a_remedy_is_proven(build, cause, sites, expected):
    found = Examined(examine(build(), steps=8))
    trials = prove(report(cause, "A fault.", sites=sites), build, train=train, found=found, steps=60, budget_s=120)
    assert expected <= {trial.name for trial in trials if trial.helped}, [(one.name, one.note) for one in trials]
