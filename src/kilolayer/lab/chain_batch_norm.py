"""Batch norm: what a sample's output owes to the rest of its batch, and what it does to gradients."""

from __future__ import annotations

import math

import torch
from torch import nn

from kilolayer.lab.chain_run import ChainPart, ChainRun, Expectations, Expected, Figures, Key
from kilolayer.lab.scheme_stream import measure_scheme
from kilolayer.nn import build_norm
from kilolayer.theory import NetworkSpec, batch_norm_rate

BATCH_SIZES = (2, 4, 8, 32, 128)
BATCHES = 64
EPS = 1e-12
"""The theory's batch norm has none, and a batch of two may bring two values close together."""
RATE_BATCH = 128
RATE_BLOCKS = 16
OTHERS, INFERENCE, RATE = "std over other batches", "training minus inference, RMS", "gradient rate per block"


def measure(run: ChainRun) -> Figures:
    """One sample in many batches, all features standard normal; and a chain of batch norms."""
    figures: Figures = {}
    for size in BATCH_SIZES:
        generator = torch.Generator().manual_seed(run.seed)
        sample = torch.randn(1, run.width, dtype=torch.float64, generator=generator)
        others = torch.randn(BATCHES, size - 1, run.width, dtype=torch.float64, generator=generator)
        for case, kind in (("batch norm", "batch"), ("layer norm", "layer")):
            norm = build_norm(kind, run.width, eps=EPS, dtype=torch.float64).requires_grad_(False)
            trained = torch.stack([norm(torch.cat([sample, rest]))[0] for rest in others])
            figures[Key(case, OTHERS, size)] = float(trained.var(0, correction=0).mean().sqrt())
            if isinstance(norm, nn.BatchNorm1d):
                norm.reset_running_stats()  # mean 0 and variance 1, which the features have
            inference = norm.eval()(sample)[0]
            figures[Key(case, INFERENCE, size)] = float((trained - inference).square().mean().sqrt())
    for case, kind in (("batch norm", "batch"), ("layer norm", "layer")):
        network = NetworkSpec(scheme="norm-only", num_layers=RATE_BLOCKS, width=run.width, norm=kind)
        gradient = measure_scheme(network, batch_size=RATE_BATCH, seed=run.seed).gradient
        figures[Key(f"{case}, relu chain", RATE, RATE_BATCH)] = float(gradient[0] ** (1 / RATE_BLOCKS))
    return figures


def predict(run: ChainRun) -> Expectations:
    """Of mean and variance over B samples, for large B: ``sqrt((1 + 1/2) / B)``; layer norm has no batch.

    A value x comes out as ``(x - m) / s``; m scatters by ``1/B``, s^2 by ``2/B``, so the output by
    ``1/B + x^2 / (2B)``, and the mean of x^2 is 1. The rate is that of large batches.
    """
    expected: Expectations = {}
    for size in BATCH_SIZES:
        for quantity in (OTHERS, INFERENCE):
            expected[Key("batch norm", quantity, size)] = Expected(math.sqrt(1.5 / size))
            expected[Key("layer norm", quantity, size)] = Expected(0.0)
    expected[Key("batch norm, relu chain", RATE, RATE_BATCH)] = Expected(batch_norm_rate())
    expected[Key("layer norm, relu chain", RATE, RATE_BATCH)] = Expected(1.0)
    return expected


BATCH_NORM = ChainPart("batch-norm", "Batch norm and its batch", "batch size", measure, predict)
