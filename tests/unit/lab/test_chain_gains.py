"""One layer's gain, and a fixed std against the width."""

import math

import pytest
import torch

from kilolayer.lab.chain_gains import (
    ACTIVATIONS,
    DEEP_STD,
    FIXED,
    FIXED_BLOCKS,
    FIXED_STD_AFTER,
    GAIN,
    GAINS,
    weight_std,
)
from kilolayer.lab.chain_run import ChainRun, Key
from kilolayer.theory import INITS

RUN = ChainRun(part="gains", num_blocks=3, width=256)


@pytest.mark.parametrize(
    ("init", "std"),
    [("kaiming", math.sqrt(2 / 100)), ("lecun", 0.1), ("xavier", 0.1), ("orthogonal", 0.1), ("fixed-0.02", 0.02)],
)
def test_stds(init, std):
    assert weight_std(init, 100) == pytest.approx(std)


def test_every_gain_is_near_theory():
    figures, expected = GAINS.measure(RUN), GAINS.predict(RUN)
    assert set(figures) == set(expected)
    assert len(figures) == 2 * len(ACTIVATIONS) * len(INITS)
    for key, value in figures.items():
        if key.quantity == GAIN:
            assert value == pytest.approx(expected[key].value, rel=0.2), key
        else:
            assert expected[key].low <= expected[key].value <= expected[key].high


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "tanh", "sigmoid"])
def test_predicted_gains_are_gaussian_means(activation):
    z = torch.randn(1_000_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    function = {"gelu": torch.nn.functional.gelu, "silu": torch.nn.functional.silu}.get(activation)
    second_moment = (function or getattr(torch, activation))(z).square().mean().item()
    expected = GAINS.predict(RUN)[Key(f"{activation}, lecun", GAIN, 1)]
    assert expected.value == pytest.approx(second_moment, rel=0.01)


def test_relu_keeps_the_std_under_kaiming_and_halves_the_variance_under_lecun():
    expected = GAINS.predict(RUN)
    assert expected[Key("relu, kaiming", GAIN, 1)].value == pytest.approx(1.0)
    assert expected[Key("relu, lecun", GAIN, 1)].value == pytest.approx(0.5)
    ratio = expected[Key("relu, lecun", DEEP_STD, 3)].value / expected[Key("relu, kaiming", DEEP_STD, 3)].value
    assert ratio == pytest.approx(2**-1.5)


def test_a_fixed_std_depends_on_the_width_and_a_norm_takes_that_away():
    figures, expected = FIXED.measure(RUN), FIXED.predict(RUN)
    assert set(figures) == set(expected)
    for key, value in figures.items():
        assert value == pytest.approx(expected[key].value, rel=0.35), key
    narrow, wide = (expected[Key("std 0.02", FIXED_STD_AFTER, width)].value for width in (64, 1024))
    assert wide / narrow == pytest.approx(4**FIXED_BLOCKS)


def test_tables_have_a_row_per_activation_and_a_column_per_init():
    key = Key("silu, torch-default", GAIN, 1)
    assert (GAINS.row_of(key), GAINS.column_of(key)) == ("silu", "torch-default")
