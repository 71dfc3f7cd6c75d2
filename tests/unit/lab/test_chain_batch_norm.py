"""What a sample's output owes to the rest of its batch."""

import math

import numpy as np
import pytest

from kilolayer.lab.chain_batch_norm import BATCH_NORM, BATCH_SIZES, INFERENCE, OTHERS, RATE, RATE_BATCH
from kilolayer.lab.chain_run import ChainRun, Key

RUN = ChainRun(part="batch-norm", width=128)


@pytest.fixture(scope="module")
def figures():
    return BATCH_NORM.measure(RUN)


def test_figures_and_expectations_have_the_same_keys(figures):
    assert set(figures) == set(BATCH_NORM.predict(RUN))


def test_layer_norm_has_no_batch(figures):
    for size in BATCH_SIZES:
        assert figures[Key("layer norm", OTHERS, size)] < 1e-12
        assert figures[Key("layer norm", INFERENCE, size)] < 1e-12


def test_scatter_falls_with_the_root_of_the_batch(figures):
    expected = BATCH_NORM.predict(RUN)
    for size in (8, 32, 128):
        for quantity in (OTHERS, INFERENCE):
            assert figures[Key("batch norm", quantity, size)] == pytest.approx(
                expected[Key("batch norm", quantity, size)].value, rel=0.15
            )
    assert expected[Key("batch norm", OTHERS, 2)].value == pytest.approx(math.sqrt(0.75))


def test_scatter_is_that_of_batches_written_out(figures):
    draws = np.random.default_rng(0)
    sample = draws.normal(size=2000)
    batches = np.concatenate([np.tile(sample, (500, 1, 1)), draws.normal(size=(500, 7, 2000))], axis=1)
    out = (sample - batches.mean(1)) / batches.std(1)
    assert figures[Key("batch norm", OTHERS, 8)] == pytest.approx(math.sqrt(out.var(0).mean()), rel=0.1)


def test_batch_norm_makes_gradients_grow_in_a_relu_chain(figures):
    assert figures[Key("batch norm, relu chain", RATE, RATE_BATCH)] == pytest.approx(1.21, abs=0.05)
    assert figures[Key("layer norm, relu chain", RATE, RATE_BATCH)] == pytest.approx(1.0, abs=0.1)
