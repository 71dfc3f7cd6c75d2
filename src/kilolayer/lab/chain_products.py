"""Products of random Jacobians: they widen with depth, even where each keeps the size of a gradient."""

from __future__ import annotations

import math

import numpy as np
import torch

from kilolayer.lab.chain_run import ChainPart, ChainRun, Expectations, Expected, Figures, Key
from kilolayer.lab.jacobian_vector import push_forward
from kilolayer.lab.scheme_stream import build_stack, measure_scheme
from kilolayer.theory import NetworkSpec, predict_scheme

GRADIENT_DRAWS = 16
JACOBIAN_DRAWS = 4
BATCH_SIZE = 2
"""Samples whose gradients are measured together; the least that theory takes."""

SCATTER, LARGEST, MEDIAN, CONDITION, RANK = (
    "log gain, std over draws",
    "largest / RMS singular value",
    "largest / median singular value",
    "condition number",
    "effective rank / width",
)
VANISHED = 1e-12
"""Singular values below this share of the largest are rounding: a ReLU layer maps half of its directions to 0."""


def cases(run: ChainRun) -> dict[str, NetworkSpec]:
    """Chains of gain 1, with norms, and with skips."""

    def spec(scheme: str, activation: str = "relu", init: str = "kaiming") -> NetworkSpec:
        return NetworkSpec(scheme=scheme, num_layers=run.num_blocks, width=run.width, activation=activation, init=init)

    return {
        "linear": spec("plain", "identity", "lecun"),
        "linear, orthogonal": spec("plain", "identity", "orthogonal"),
        "relu": spec("plain"),
        "relu, norm": spec("norm-only"),
        "post-ln": spec("post-ln"),
        "pre-ln": spec("pre-ln"),
        "pre-ln-scaled": spec("pre-ln-scaled"),
        "deepnorm": spec("deepnorm"),
    }


def measure(run: ChainRun) -> Figures:
    """Scatter of the gradient's size over draws, and the spectrum of the product of the first Jacobians."""
    figures: Figures = {}
    for case, network in cases(run).items():
        seeds = [run.seed * GRADIENT_DRAWS + draw for draw in range(GRADIENT_DRAWS)]
        logs = np.log([measure_scheme(network, batch_size=BATCH_SIZE, seed=seed).gradient for seed in seeds])
        spectra = [jacobian_spectra(network, run.depths(), seed=seed) for seed in seeds[:JACOBIAN_DRAWS]]
        for place, depth in enumerate(run.depths()):
            figures[Key(case, SCATTER, depth)] = float(logs[:, run.num_blocks - depth].std(ddof=1))
            for quantity in (LARGEST, MEDIAN, CONDITION, RANK):
                found = [describe(values[place])[quantity] for values in spectra]
                figures[Key(case, quantity, depth)] = float(np.median(found))
    return figures


def jacobian_spectra(network: NetworkSpec, depths: list[int], *, seed: int) -> list[np.ndarray]:
    """Singular values of the Jacobian of block ``depth``'s output at one random input, for each depth."""
    generator = torch.Generator().manual_seed(seed)
    stack = build_stack(network, generator=generator).requires_grad_(False)
    sample = torch.randn(network.width, dtype=torch.float64, generator=generator)
    x = sample.repeat(network.width, 1)
    directions = torch.eye(network.width, dtype=torch.float64)
    spectra = []
    for number, block in enumerate(stack, start=1):
        x, directions = push_forward(block, x, directions)
        if number in depths:
            spectra.append(torch.linalg.svdvals(directions).numpy())
    return spectra


def describe(values: np.ndarray) -> dict[str, float]:
    """How far singular values, in descending order, are from being all alike.

    The effective rank is ``(sum s^2)^2 / sum s^4``: the width where all are alike, 1 where one is left. Ratios to
    values that are no more than rounding are infinite.
    """
    squares = (values / values[0]) ** 2
    floor = values[0] * VANISHED

    def over(value: float) -> float:
        return float(values[0] / value) if value > floor else math.inf

    return {
        LARGEST: float(1 / math.sqrt(squares.mean())),
        MEDIAN: over(float(np.median(values))),
        CONDITION: over(float(values[-1])),
        RANK: float(squares.sum() ** 2 / (squares**2).sum() / len(values)),
    }


def predict(run: ChainRun) -> Expectations:
    """Scatter for all cases; the effective rank for linear and ReLU chains."""
    expected: Expectations = {}
    for case, network in cases(run).items():
        stds = predict_scheme(network, batch_size=BATCH_SIZE).gradient.log_std
        for depth in run.depths():
            expected[Key(case, SCATTER, depth)] = _with_sampling_band(float(stds[run.num_blocks - depth]))
    for depth in run.depths():
        expected[Key("linear, orthogonal", SCATTER, depth)] = Expected(0.0)
        for quantity in (LARGEST, MEDIAN, CONDITION, RANK):
            expected[Key("linear, orthogonal", quantity, depth)] = Expected(1.0)
        for case, is_relu in (("linear", False), ("relu", True)):
            expected[Key(case, RANK, depth)] = Expected(effective_rank(run.width, depth, is_relu=is_relu) / run.width)
    return expected


def effective_rank(width: int, depth: int, *, is_relu: bool) -> float:
    """``E[(tr A)^2] / E[tr A^2]`` for ``A = J J^T``, J the product of so many random Jacobians.

    With a = E[tr A^2], b = E[(tr A)^2] and W of variance ``1/n``, a layer ``A -> W A W^T`` makes of them

        ``a' = (1 + 1/n) a + b/n``,  ``b' = b + 2 a/n``,

    so that without the terms in 1/n the rank is ``n / (depth + 1)``. ReLU keeps each row with probability 1/2, at
    twice the variance: ``a' = (2/n) (b + 2a) + (1 - 1/n) a``, ``b' = (2/n) (b + 2a) + (1 - 1/n) b``.

    Examples:
        >>> round(effective_rank(10_000, 4, is_relu=False) / 10_000, 3)
        0.2
    """
    a, b = 1.0 / width, 1.0
    for _ in range(depth):
        if is_relu:
            both = 2 / width * (b + 2 * a)
            a, b = both + (1 - 1 / width) * a, both + (1 - 1 / width) * b
        else:
            a, b = (1 + 1 / width) * a + b / width, b + 2 * a / width
    return b / a


def _with_sampling_band(std: float) -> Expected:
    """The band of a standard deviation that is taken from :data:`GRADIENT_DRAWS` normal draws."""
    error = 1.96 / math.sqrt(2 * (GRADIENT_DRAWS - 1))
    return Expected(std, std * (1 - error), std * (1 + error))


PRODUCTS = ChainPart("products", "Products of random Jacobians", "blocks", measure, predict)
