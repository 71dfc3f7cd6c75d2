"""What the thousand-layer experiment shows, at 30 + 30 layers and on number words."""

import numpy as np
import pytest

from kilolayer.lab.depth_run import DepthRun
from kilolayer.lab.thousand import run_thousand
from kilolayer.lab.thousand_results import ThousandResult, spread
from kilolayer.lab.translation_data import encode_split, load_split


@pytest.fixture(scope="module")
def data():
    return encode_split(load_split("number-words", batch_size=16), vocab_size=100, length=24)


def train(scheme, seed, data, folder):
    run = DepthRun(
        scheme, 30, 30, seed=seed, lr=3e-4, width=32, num_steps=180, batch_size=16, length=24, init="xavier"
    )  # fmt: skip
    return ThousandResult(run, run_thousand(run, data, folder, depth_samples=4, on_step=lambda step: None))


@pytest.mark.parametrize("seed", [0, 1])
def test_deepnorm_learns_from_the_source_with_even_gradients(seed, data, tmp_path):
    result = train("deepnorm:deepnet", seed, data, tmp_path)
    assert result.outcome == "trains"
    assert result.train_loss < result.numbers["unigram_entropy"]
    assert result.numbers["dev_loss"] < result.numbers["dev_unigram_loss"] - 0.5
    assert result.numbers["encoder_use"] > 0
    for norms in (*result.grads.values(), *result.grads_at_start.values()):
        assert spread(norms) <= 10


def test_post_ln_does_not_get_there(data, tmp_path):
    result = train("post-ln", 0, data, tmp_path)
    assert result.outcome in ("stuck", "slow")
    assert result.numbers["dev_loss"] > result.numbers["dev_unigram_loss"]
    assert spread(result.grads["decoder"]) > 1e4
    assert np.median(result.grads["decoder"]) < 0.01 * result.grads["decoder"].max()
