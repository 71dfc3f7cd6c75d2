"""Chains of matrices that are not square."""

import math

import numpy as np
import pytest

from kilolayer.lab.chain_rectangular import BACKWARD, FORWARD, JOINT, MODES, RECTANGULAR, SHAPES, weight_variance
from kilolayer.lab.chain_run import ChainRun, Key

SEEDS = 40


@pytest.fixture(scope="module")
def draws():
    found: dict[Key, list[float]] = {}
    for seed in range(SEEDS):
        for key, value in RECTANGULAR.measure(ChainRun(part="rectangular", seed=seed)).items():
            found.setdefault(key, []).append(value)
    return found


def test_bands_hold_most_draws_and_medians_fit(draws):
    expected = RECTANGULAR.predict(ChainRun(part="rectangular"))
    assert set(draws) == set(expected)
    for key, values in draws.items():
        band = expected[key]
        inside = sum(band.low <= value <= band.high for value in values)
        assert inside >= 0.8 * SEEDS, key  # 95 % of 40 are 38; 32 or fewer come up once in ten thousand
        spread = math.log(band.high / band.low) / (2 * 1.96)
        assert abs(math.log(np.median(values) / band.value)) < 4 * 1.25 * spread / math.sqrt(SEEDS), key


@pytest.mark.parametrize("shape", SHAPES)
def test_either_end_decides_what_one_side_costs(shape):
    """Fan-in keeps activations and changes gradients by the root of the widths' ratio alone, however deep."""
    expected = RECTANGULAR.predict(ChainRun(part="rectangular"))
    widths, layers = SHAPES[shape], len(SHAPES[shape]) - 1
    fan_in, fan_out = (
        {quantity: expected[Key(f"{shape}{JOINT}{mode}", quantity, layers)].value for quantity in (FORWARD, BACKWARD)}
        for mode in MODES[:2]
    )
    end_ratio = math.sqrt(widths[-1] / widths[0])
    assert fan_in[BACKWARD] / fan_out[BACKWARD] == pytest.approx(end_ratio)
    assert fan_in[FORWARD] / fan_out[FORWARD] == pytest.approx(end_ratio)


def test_the_compromise_decays_where_widths_alternate():
    assert weight_variance(MODES[2], 64, 256) * 64 / 2 * weight_variance(MODES[2], 256, 64) * 256 / 2 < 1
    for mode in MODES[:2]:
        pair = [weight_variance(mode, *fans) * fans[0] / 2 for fans in ((64, 256), (256, 64))]
        assert math.prod(pair) == pytest.approx(1.0)
