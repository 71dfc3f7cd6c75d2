"""The gradient of the mean cross-entropy at the logits, over draws of the logits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from kilolayer.theory.hermite import Array
from kilolayer.theory.pairs import SamplePairs
from kilolayer.theory.signal import Signal

NUM_DRAWS = 128


@dataclass(frozen=True)
class OutputDraws:
    """Draws of ``e = softmax(z) - onehot(label)`` per sample.

    Attributes:
        products: packed <e_i, e_j> for every draw, float32. Shape: ``(draws, pairs)``.
        along: ``<e_i, z_i>`` with z in units of ``exp(log_scale / 2)``. Shape: ``(draws, samples)``.
        log_scale: see ``along``.
        sizes: where the size of the signal behind the last block falls, in standard deviations. Shape: ``(draws,)``.
        centered_spread: standard deviation over draws of ``ln sum_i |e_i - mean e|^2``.
    """

    products: Array
    along: Array
    log_scale: float
    sizes: Array
    centered_spread: float


def draw_outputs(
    logits: Signal, labels: Array, *, num_outputs: int, size_log_variance: float, pairs: SamplePairs, seed: int
) -> OutputDraws:
    """Draw logits: Gaussian with the covariance of ``logits`` between samples, independent between outputs.

    Their common size is log-normal with variance ``size_log_variance``, taken at equally likely quantiles, as it
    decides how far the softmax saturates.
    """
    rng = np.random.default_rng(seed)
    eigenvalues, vectors = np.linalg.eigh(pairs.unpack(logits.gram))
    root = vectors * np.sqrt(np.maximum(eigenvalues, 0.0))
    sizes = normal_quantiles(NUM_DRAWS, rng) if size_log_variance > 0 else np.zeros(NUM_DRAWS)
    scale = math.exp(min(0.5 * logits.log_scale, 300.0))
    targets = np.eye(num_outputs)[labels]
    products = np.empty((NUM_DRAWS, len(pairs.rows)), dtype=np.float32)
    along = np.empty((NUM_DRAWS, pairs.num_samples))
    energies = np.empty(NUM_DRAWS)
    for draw in range(NUM_DRAWS):
        unit = root @ rng.standard_normal((pairs.num_samples, num_outputs))
        unit *= math.exp(0.5 * (math.sqrt(size_log_variance) * sizes[draw] - 0.5 * size_log_variance))
        errors = _softmax(scale * unit) - targets
        products[draw] = pairs.pack(errors @ errors.T)
        along[draw] = (errors * unit).sum(axis=1)
        energies[draw] = ((errors - errors.mean(axis=0)) ** 2).sum()
    spread = float(np.log(np.maximum(energies, 1e-300)).std())
    return OutputDraws(products, along, logits.log_scale, sizes, spread)


def normal_quantiles(count: int, rng: np.random.Generator) -> Array:
    """Equally likely standard normal values in random order: mean 0 exactly, unlike a sample."""
    normal = NormalDist()
    values = np.array([normal.inv_cdf((k + 0.5) / count) for k in range(count)])
    rng.shuffle(values)
    return values


def _softmax(logits: Array) -> Array:
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)
