"""What one layer does to the variance: by activation and initialization, and by width where the std is fixed."""

from __future__ import annotations

import math
from itertools import product

import torch
from torch import Tensor

from kilolayer.lab.chain_run import ChainPart, ChainRun, Expectations, Expected, Figures, Key
from kilolayer.lab.scheme_stream import measure_scheme
from kilolayer.nn import build_norm
from kilolayer.nn.activations import get_elementwise
from kilolayer.theory import INITS, NetworkSpec, next_variance, predict_scheme

ACTIVATIONS = ("identity", "relu", "gelu", "silu", "tanh", "sigmoid")
SAMPLES = 256
CHAIN_SAMPLES = 32
GAIN, DEEP_STD = "variance gain of a layer", "std after the last block"
JOINT = ", "
"""Between activation and initialization in the name of a case."""

FIXED_STD = 0.02
FIXED_WIDTHS = (64, 256, 768, 1024, 4096)
FIXED_SAMPLES = 16
FIXED_BLOCKS = 4
"""Few, because a matrix of the widest has 17 million entries."""
FIXED_STD_AFTER = f"std after {FIXED_BLOCKS} ReLU blocks"
FIXED_CASES = ("std 0.02", "std 0.02, norm", "Kaiming")


def weight_std(init: str, width: int) -> float:
    """Of the matrix in front of an activation."""
    return NetworkSpec(scheme="plain", num_layers=1, width=width, init=init).weight_std(before_activation=True)


def measure_gains(run: ChainRun) -> Figures:
    """Variance behind ``W phi(z)`` for standard normal z; std of the pre-activations at the end of a whole chain."""
    figures: Figures = {}
    for index, (activation, init) in enumerate(product(ACTIVATIONS, INITS)):
        generator = torch.Generator().manual_seed(1000 * run.seed + index)
        case = f"{activation}{JOINT}{init}"
        z = torch.randn(SAMPLES, run.width, dtype=torch.float64, generator=generator)
        out = get_elementwise(activation)(z) @ _draw(init, run.width, generator).T
        figures[Key(case, GAIN, 1)] = float(out.square().mean())
        stream = measure_scheme(_chain(run, activation, init), batch_size=CHAIN_SAMPLES, seed=run.seed).stream
        figures[Key(case, DEEP_STD, run.num_blocks)] = float(stream[-1])
    return figures


def _chain(run: ChainRun, activation: str, init: str) -> NetworkSpec:
    return NetworkSpec(scheme="plain", num_layers=run.num_blocks, width=run.width, activation=activation, init=init)


def _draw(init: str, width: int, generator: torch.Generator) -> Tensor:
    weight = torch.empty(width, width, dtype=torch.float64)
    if init == "orthogonal":
        return torch.nn.init.orthogonal_(weight, generator=generator)
    return weight.normal_(0.0, weight_std(init, width), generator=generator)


def predict_gains(run: ChainRun) -> Expectations:
    """``n std^2 E[phi(z)^2]``; of a whole chain the median over draws and its band."""
    expected: Expectations = {}
    chains: dict[tuple[str, float], Expected] = {}
    for activation, init in product(ACTIVATIONS, INITS):
        std = weight_std(init, run.width)
        gain = next_variance(1.0, activation, weight_variance=run.width * std**2)
        expected[Key(f"{activation}{JOINT}{init}", GAIN, 1)] = Expected(gain)
        if (activation, std) not in chains:  # to theory, xavier and orthogonal are lecun
            chains[activation, std] = _predict_chain(_chain(run, activation, init))
        expected[Key(f"{activation}{JOINT}{init}", DEEP_STD, run.num_blocks)] = chains[activation, std]
    return expected


def _predict_chain(network: NetworkSpec) -> Expected:
    stream = predict_scheme(network, batch_size=CHAIN_SAMPLES).stream
    return Expected(float(stream.median[-1]), float(stream.low[-1]), float(stream.high[-1]))


def measure_fixed_std(run: ChainRun) -> Figures:
    """Std of pre-activations after a few ReLU blocks, by width."""
    figures: Figures = {}
    for width, case in product(FIXED_WIDTHS, FIXED_CASES):
        generator = torch.Generator().manual_seed(run.seed)
        std = weight_std("kaiming", width) if case == "Kaiming" else FIXED_STD
        norm = build_norm("layer", width) if case.endswith("norm") else None
        with torch.no_grad():
            z = torch.randn(FIXED_SAMPLES, width, generator=generator)
            for _ in range(FIXED_BLOCKS):
                z = torch.relu(z) @ torch.empty(width, width).normal_(0.0, std, generator=generator).T
                z = z if norm is None else norm(z)
        figures[Key(case, FIXED_STD_AFTER, width)] = float(z.square().mean().sqrt())
    return figures


def predict_fixed_std(run: ChainRun) -> Expectations:
    """``sqrt(n std^2 / 2)`` per block; 1 behind a norm."""
    expected: Expectations = {}
    for width in FIXED_WIDTHS:
        rate = math.sqrt(width * FIXED_STD**2 / 2)
        for case, value in zip(FIXED_CASES, (rate**FIXED_BLOCKS, 1.0, 1.0), strict=True):
            expected[Key(case, FIXED_STD_AFTER, width)] = Expected(value)
    return expected


GAINS = ChainPart(
    "gains",
    "Activation and initialization",
    "blocks",
    measure_gains,
    predict_gains,
    column_of=lambda key: key.case.split(JOINT)[1],
    row_of=lambda key: key.case.split(JOINT)[0],
)
FIXED = ChainPart(
    "fixed-std",
    "A fixed std against the width",
    "width",
    measure_fixed_std,
    predict_fixed_std,
)
