"""The residual stream, and what the skips alone carry of a gradient."""

import math

import pytest
import torch

from kilolayer.lab.chain_growth import GRADIENT, GROWTH, IDENTITY, STREAM, TRIPLED, cases, gradient_cosine
from kilolayer.lab.chain_run import ChainRun, Key
from kilolayer.lab.scheme_stream import build_stack

RUN = ChainRun(part="growth", num_blocks=16, width=128)


def test_doubles_triples_or_grows_in_proportion():
    expected = GROWTH.predict(RUN)
    values = {case: expected[Key(case, STREAM, 16)].value for case in cases(RUN)}
    assert values["residual"] == pytest.approx(2**8, rel=0.3)
    assert values[TRIPLED] == pytest.approx(3**8, rel=0.4)
    assert values["pre-ln"] == pytest.approx(math.sqrt(17), rel=0.05)
    assert values["post-ln"] == values["deepnorm"] == pytest.approx(1.0)
    assert values["pre-ln-scaled"] == pytest.approx(math.sqrt(1.5), rel=0.02)


def test_measured_lies_near_theory():
    figures, expected = GROWTH.measure(RUN), GROWTH.predict(RUN)
    assert set(figures) == set(expected)
    for key, value in figures.items():
        if key.quantity in (STREAM, GRADIENT):
            assert expected[key].low / 1.3 <= value <= 1.3 * expected[key].high, key
        else:
            assert abs(value - expected[key].value) < 0.2, key


def test_the_cosine_is_that_of_the_whole_product_with_the_identity():
    network = cases(ChainRun(part="growth", num_blocks=3, width=8))["pre-ln"]
    generator = torch.Generator().manual_seed(4)
    stack = build_stack(network, generator=generator)
    inputs = torch.randn(32, 8, dtype=torch.float64, generator=generator)
    top = torch.randn(32, 8, dtype=torch.float64, generator=generator)
    cosines = []
    for x, g in zip(inputs, top, strict=True):
        jacobian = torch.autograd.functional.jacobian(lambda one: stack(one[None])[0], x)
        cosines.append(torch.nn.functional.cosine_similarity(jacobian.T @ g, g, dim=0))
    assert gradient_cosine(network, seed=4) == pytest.approx(torch.stack(cosines).mean().item())


def test_deepnorms_skips_carry_nearly_all_and_post_lns_nearly_nothing():
    expected = GROWTH.predict(RUN)
    assert expected[Key("deepnorm", IDENTITY, 16)].value > 0.9
    assert expected[Key("post-ln", IDENTITY, 16)].value < 0.01
    assert expected[Key("pre-ln", IDENTITY, 16)].value == pytest.approx(1 / math.sqrt(17), rel=0.1)
