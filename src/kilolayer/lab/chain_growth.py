"""The residual stream: its growth on the way up, the gradient's on the way down, and what the I of I + J carries."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch

from kilolayer.lab.chain_run import ChainPart, ChainRun, Expectations, Expected, Figures, Key
from kilolayer.lab.scheme_stream import build_stack, measure_scheme
from kilolayer.schemes import BranchScales, Scheme, get_scheme
from kilolayer.schemes.scheme import constant
from kilolayer.theory import NetworkSpec, SizeBand, predict_scheme

BATCH_SIZE = 32
STREAM, GRADIENT, IDENTITY = "std of the stream", "gradient at the bottom / top", "cosine of the two gradients"
SCHEMES = ("residual", "residual-scaled", "pre-ln", "pre-ln-scaled", "post-ln", "deepnorm")
TRIPLED = "residual, Kaiming twice"


def cases(run: ChainRun) -> dict[str, NetworkSpec]:
    """Residual networks whose branches have gain 1 at their base initialization, and one of gain 2."""
    schemes: dict[str, Scheme] = {name: get_scheme(name) for name in SCHEMES}
    twice = BranchScales(last_init_gain=math.sqrt(2))
    schemes[TRIPLED] = replace(schemes["residual"], scales=constant(twice))
    return {
        name: NetworkSpec(scheme=scheme, num_layers=run.num_blocks, width=run.width) for name, scheme in schemes.items()
    }


def measure(run: ChainRun) -> Figures:
    """Stream and gradient by depth; the cosine between the gradients at the bottom and at the top."""
    figures: Figures = {}
    for case, network in cases(run).items():
        found = measure_scheme(network, batch_size=BATCH_SIZE, seed=run.seed)
        for depth in run.depths():
            figures[Key(case, STREAM, depth)] = float(found.stream[depth])
        figures[Key(case, GRADIENT, run.num_blocks)] = float(found.gradient[0])
        figures[Key(case, IDENTITY, run.num_blocks)] = gradient_cosine(network, seed=run.seed)
    return figures


def gradient_cosine(network: NetworkSpec, *, seed: int) -> float:
    """Cosine between the gradient that enters a stack at the top and the one that leaves it at the bottom."""
    generator = torch.Generator().manual_seed(seed)
    stack = build_stack(network, generator=generator).requires_grad_(False)
    shape = (BATCH_SIZE, network.width)
    inputs = torch.randn(shape, dtype=torch.float64, generator=generator, requires_grad=True)
    at_top = torch.randn(shape, dtype=torch.float64, generator=generator)
    (at_bottom,) = torch.autograd.grad(stack(inputs), inputs, at_top)
    return float(torch.nn.functional.cosine_similarity(at_bottom, at_top, dim=-1).mean())


def predict(run: ChainRun) -> Expectations:
    """Medians over draws and their bands.

    Of ``prod (I + J_l)`` the term that takes no branch carries the gradient of the top unchanged, times
    ``skip_scale / s`` where a post-norm divides by s; all others are random beside it. So the cosine is what the
    skips carry over the whole: ``prod sqrt(identity_fraction) / ratio`` behind post-norms, ``1 / ratio`` elsewhere.
    """
    expected: Expectations = {}
    for case, network in cases(run).items():
        found = predict_scheme(network, batch_size=BATCH_SIZE)
        for depth in run.depths():
            expected[Key(case, STREAM, depth)] = _at(found.stream, depth)
        expected[Key(case, GRADIENT, run.num_blocks)] = _at(found.gradient, 0)
        has_post_norm = "post" in network.scales()[0].norm_slots
        carried = float(np.sqrt(found.identity_fraction).prod()) if has_post_norm else 1.0
        cosine = carried / float(found.gradient.median[0])
        # What random directions of n dimensions overlap by chance; the samples' may have become one.
        chance = 1.96 * math.sqrt((1 - min(cosine, 1.0) ** 2) / run.width)
        expected[Key(case, IDENTITY, run.num_blocks)] = Expected(cosine, cosine - chance, cosine + chance)
    return expected


def _at(band: SizeBand, position: int) -> Expected:
    return Expected(float(band.median[position]), float(band.low[position]), float(band.high[position]))


GROWTH = ChainPart("growth", "The residual stream, I + J", "blocks", measure, predict)
