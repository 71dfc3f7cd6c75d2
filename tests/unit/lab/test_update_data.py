"""Batches depend on seed and step alone, and say what is to be guessed."""

import pytest
import torch

from kilolayer.lab.update_data import LENGTH, draw_batch, input_sizes, load_update_data
from kilolayer.lab.update_network import NO_TARGET


@pytest.fixture(scope="module")
def data():
    return load_update_data({"decoder", "encoder", "mlp"})


@pytest.mark.parametrize("network", ["decoder", "encoder", "mlp"])
def test_the_same_step_gives_the_same_batch_and_another_one_another(network, data):
    first, again, other, seeded = (
        draw_batch(network, data, size=3, seed=seed, step=step) for seed, step in ((0, 1), (0, 1), (0, 2), (1, 1))
    )
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], other[0])
    assert not torch.equal(first[0], seeded[0])


def test_a_decoder_predicts_what_comes_next(data):
    inputs, targets = draw_batch("decoder", data, size=3, seed=0, step=1)
    assert inputs.shape == targets.shape == (3, LENGTH)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])


def test_an_encoder_guesses_what_is_masked_and_nothing_else(data):
    inputs, targets = draw_batch("encoder", data, size=8, seed=0, step=1)
    plain, _ = draw_batch("decoder", data, size=8, seed=0, step=1)
    mask = input_sizes("encoder", data)[0] - 1
    masked = inputs == mask
    assert 0 < int(masked.sum()) < masked.numel() / 2
    assert torch.equal(targets[masked], plain[masked])
    assert torch.equal(inputs[~masked], plain[~masked])
    assert bool((targets[~masked] == NO_TARGET).all())


def test_an_mlp_sees_as_many_rows_as_a_transformer_tokens(data):
    inputs, targets = draw_batch("mlp", data, size=3, seed=0, step=1)
    assert inputs.shape == (3 * LENGTH, input_sizes("mlp", data)[0])
    assert targets.shape == (3 * LENGTH,)
    assert inputs.dtype == torch.float64


def test_only_what_is_needed_is_loaded(data):
    transformers, mlps = load_update_data({"encoder"}), load_update_data({"mlp"})
    assert transformers.digits is None
    assert mlps.characters is None
    assert len({transformers.check, mlps.check, data.check}) == 3
