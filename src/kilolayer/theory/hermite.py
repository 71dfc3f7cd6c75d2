"""Averages over Gaussian variables, and functions as series of Hermite polynomials."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np

Array = np.ndarray
Function = Callable[[Array], Array]

NUM_TERMS = 33
"""Hermite coefficients kept. Those of a smooth activation fall geometrically."""

_HALF_WIDTH, _NUM_NODES = 10.0, 1001
"""The trapezoid rule converges exponentially for smooth functions on the line, steep ones included; Gauss-Hermite
quadrature misses the narrow derivative of a saturated tanh."""


@cache
def _grid() -> tuple[Array, Array]:
    """Nodes and weights of ``E f(z) = sum_k weights[k] f(nodes[k])`` for a standard normal z."""
    nodes = np.linspace(-_HALF_WIDTH, _HALF_WIDTH, _NUM_NODES)
    weights = np.exp(-0.5 * nodes * nodes)
    return nodes, weights / weights.sum()


@cache
def _weighted_hermite() -> Array:
    """Normalized probabilists' Hermite polynomials at the nodes times the weights, shape (nodes, NUM_TERMS)."""
    nodes, weights = _grid()
    values = [np.ones_like(nodes), nodes]
    for k in range(1, NUM_TERMS - 1):
        values.append((nodes * values[k] - math.sqrt(k) * values[k - 1]) / math.sqrt(k + 1))
    return np.stack(values, axis=1) * weights[:, None]


def gaussian_mean(function: Function, variance: float) -> float:
    """``E f(sqrt(variance) z)`` for a standard normal z and a smooth f.

    Examples:
        >>> round(gaussian_mean(lambda x: x**4, 2.0), 6)
        12.0
    """
    nodes, weights = _grid()
    return float(weights @ function(math.sqrt(variance) * nodes))


def pair_mean(function: Function, variances: Array, *, rows: Array, cols: Array, cosine: Array) -> Array:
    """``E f(u) f(v)`` for pairs of jointly Gaussian u, v; pair p joins samples ``rows[p]`` and ``cols[p]``.

    Mehler's formula, ``E f(u) f(v) = sum_k a_k(u) a_k(v) cosine^k`` with a_k the Hermite coefficients of f at
    the sample's variance. What the kept terms leave out of ``E f(u)^2`` goes into one more term, which makes
    cosine 1 exact.

    Shape: variances ``(samples,)``, the others ``(pairs,)``; returns ``(pairs,)``.

    Reference: Daniely et al. 2016, arXiv:1602.05897, section 4 (dual activations).
    """
    nodes, weights = _grid()
    values = function(np.sqrt(variances)[:, None] * nodes)
    coefficients = values @ _weighted_hermite()
    rest = np.sqrt(np.maximum(values**2 @ weights - (coefficients**2).sum(axis=1), 0.0))
    total = rest[rows] * rest[cols]
    for k in range(NUM_TERMS - 1, -1, -1):
        total = total * cosine + coefficients[rows, k] * coefficients[cols, k]
    return total
