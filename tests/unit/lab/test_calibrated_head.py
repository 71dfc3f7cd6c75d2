"""A head that starts at frequencies, and what that keeps an encoder from."""

import math

import numpy as np
import pytest
import torch

from kilolayer.lab.calibrated_head import calibrate_head
from kilolayer.lab.depth_run import DepthRun
from kilolayer.lab.training import build_optimizer
from kilolayer.lab.translation_data import encode_split, load_split
from kilolayer.lab.translation_measures import measure_encoder_cosine, unigram_entropy
from kilolayer.train.pair_batches import Batches, make_batch, token_losses


@pytest.fixture(scope="module")
def data():
    return encode_split(load_split("number-words", batch_size=16), vocab_size=100, length=24)


def build(data, head, layers=2, seed=0):
    run = DepthRun("deepnorm:deepnet", layers, layers, width=32, seed=seed, head=head)
    model = run.build_model(run.build_config(data.vocab_size))
    if head == "calibrated":
        calibrate_head(model, data.target_counts())
    return model


def test_the_loss_starts_at_the_unigram_entropy(data):
    model = build(data, "calibrated")
    losses = torch.cat([token_losses(model, Batches(data.train, batch_size=64, seed=0).at(step)) for step in range(40)])
    assert losses.mean().item() == pytest.approx(unigram_entropy(data), rel=0.05)
    assert token_losses(build(data, "tied"), Batches(data.train, batch_size=64, seed=0).at(0)).mean() > 4.7


def test_tokens_that_never_came_keep_a_finite_loss(data):
    model = build(data, "calibrated")
    assert torch.isfinite(model.head.bias).all()
    assert model.head.bias.exp().sum().item() == pytest.approx(1.0, abs=1e-5)
    assert model.head.weight.requires_grad
    assert model.head.bias.requires_grad


def test_fewer_counts_than_tokens(data):
    model = build(data, "tied")
    calibrate_head(model, np.array([3, 1]))
    size = model.config.vocab_size
    assert model.head.bias[1].item() == pytest.approx(math.log(1 / (4 + 0.5 * (size - 2))), rel=1e-5)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_tied_head_makes_the_encoder_say_one_thing_and_a_calibrated_one_does_not(seed, data):
    cosines = {}
    for head in ("tied", "calibrated"):
        model = build(data, head, layers=12, seed=seed)
        optimizer, batches = build_optimizer("adamw", model, 1e-3), Batches(data.train, batch_size=16, seed=seed)
        for step in range(30):
            optimizer.zero_grad()
            token_losses(model, batches.at(step)).mean().backward()
            optimizer.step()
        cosines[head] = measure_encoder_cosine(model, make_batch(data.dev, range(16)))
    assert cosines["tied"] > 0.99
    assert cosines["calibrated"] < 0.9


def test_the_cosine_is_the_mean_over_pairs(data):
    model, batch = build(data, "tied"), make_batch(data.dev, range(3))
    outputs = model.encode(batch.source, source_padding=batch.source_padding)[batch.source != 0].detach()
    pairs = torch.nn.functional.cosine_similarity(outputs[:, None], outputs[None], dim=-1)
    expected = (pairs.sum() - pairs.trace()) / (len(outputs) * (len(outputs) - 1))
    assert measure_encoder_cosine(model, batch) == pytest.approx(expected.item(), abs=1e-5)


def test_runs_that_differ_in_the_head_have_folders_of_their_own():
    tied, calibrated = (DepthRun("deepnorm", 2, 2, head=head) for head in ("tied", "calibrated"))
    assert tied.folder_name == "deepnorm-2+2-lr0.001-seed0"
    assert calibrated.folder_name == "deepnorm-2+2-lr0.001-calibrated-seed0"


@pytest.mark.parametrize(
    ("layers", "head", "words"), [(2, "zero", "tied, calibrated"), (0, "calibrated", "no encoder")]
)
def test_a_head_that_does_not_fit_is_told(layers, head, words):
    with pytest.raises(ValueError, match=words):
        DepthRun("deepnorm", layers, 2, head=head)
