"""Matrices that are not square: what their std keeps on the way up, and what on the way down."""

from __future__ import annotations

import math
from itertools import pairwise, product

import numpy as np
import torch
from torch import Tensor

from kilolayer.lab.chain_run import ChainPart, ChainRun, Expectations, Expected, Figures, Key

SHAPES: dict[str, tuple[int, ...]] = {
    "64 and 256 in turn": (64, 256) * 8 + (64,),
    "512 down to 32": (512,) * 4 + (256,) * 4 + (128,) * 4 + (64,) * 4 + (32,),
    "32 up to 512": (32,) * 4 + (64,) * 4 + (128,) * 4 + (256,) * 4 + (512,),
}
"""Widths of ReLU chains from the input up; 16 matrices each."""
MODES = ("2 / n_in", "2 / n_out", "4 / (n_in + n_out)")
"""Variance of a weight: what keeps activations, what keeps gradients, and Glorot's compromise."""
FORWARD, BACKWARD = "activation at the top / bottom", "gradient at the bottom / top"
JOINT = ", weight variance "
"""Between shape and mode in the name of a case."""


def weight_variance(mode: str, n_in: int, n_out: int) -> float:
    """Of the entries of an ``n_out x n_in`` matrix."""
    return {MODES[0]: 2 / n_in, MODES[1]: 2 / n_out, MODES[2]: 4 / (n_in + n_out)}[mode]


def measure(run: ChainRun) -> Figures:
    """RMS ratios of one standard normal sample on the way up and of one gradient on the way down."""
    figures: Figures = {}
    for shape, mode in product(SHAPES, MODES):
        widths = SHAPES[shape]
        generator = torch.Generator().manual_seed(run.seed)
        bottom = _normal(generator, widths[0]).requires_grad_()
        z = bottom
        for n_in, n_out in pairwise(widths):
            z = _normal(generator, n_out, n_in) * math.sqrt(weight_variance(mode, n_in, n_out)) @ torch.relu(z)
        at_top = _normal(generator, widths[-1])
        (at_bottom,) = torch.autograd.grad(z, bottom, at_top)
        case = f"{shape}{JOINT}{mode}"
        figures[Key(case, FORWARD, len(widths) - 1)] = _rms(z.detach()) / _rms(bottom.detach())
        figures[Key(case, BACKWARD, len(widths) - 1)] = _rms(at_bottom) / _rms(at_top)
    return figures


def _normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def _rms(values: Tensor) -> float:
    return float(values.square().mean().sqrt())


def predict(run: ChainRun) -> Expectations:
    r"""Medians over draws and their bands.

    A layer multiplies the mean square by ``v n_in / 2`` on the way up and ``v n_out / 2`` on the way down, v the
    variance of a weight. Around that its logarithm scatters with variance ``2 / n_out + 3 / n_in`` and ``5 / n_in``,
    and its median is lower by half of it.
    """
    expected: Expectations = {}
    for shape, mode in product(SHAPES, MODES):
        widths = np.array(SHAPES[shape], dtype=float)
        n_in, n_out = widths[:-1], widths[1:]
        variance = np.array([weight_variance(mode, *pair) for pair in zip(n_in, n_out, strict=True)])
        case = f"{shape}{JOINT}{mode}"
        expected[Key(case, FORWARD, len(n_in))] = _band(variance * n_in / 2, 2 / n_out + 3 / n_in)
        expected[Key(case, BACKWARD, len(n_in))] = _band(variance * n_out / 2, 5 / n_in)
    return expected


def _band(gains: np.ndarray, scatter: np.ndarray) -> Expected:
    middle = float((np.log(gains) - scatter / 2).sum()) / 2
    reach = 1.96 * math.sqrt(float(scatter.sum())) / 2
    return Expected(*(math.exp(log) for log in (middle, middle - reach, middle + reach)))


RECTANGULAR = ChainPart(
    "rectangular",
    "Matrices that are not square",
    "blocks",
    measure,
    predict,
    column_of=lambda key: key.case.split(JOINT)[1],
    row_of=lambda key: key.case.split(JOINT)[0],
)
