"""Activations as the theory of random networks sees them: Gaussian moments and kernels between samples."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kilolayer.schemes.suggest import unknown_name
from kilolayer.theory.hermite import Array, Function, gaussian_mean, pair_mean


class PairKernels(NamedTuple):
    """Averages over two jointly Gaussian pre-activations u, v, elementwise over pairs of samples.

    ``value`` is E[phi(u) phi(v)], ``derivative`` E[phi'(u) phi'(v)], ``square`` E[phi(u)^2 phi(v)^2].
    """

    value: Array
    derivative: Array
    square: Array


@dataclass(frozen=True)
class Activation:
    """An activation function phi.

    Attributes:
        name: its name.
        value: phi, elementwise.
        derivative: phi', elementwise.
        is_homogeneous: whether ``phi(c x) = c phi(x)`` for every c > 0.

    Examples:
        >>> import numpy as np
        >>> from kilolayer.theory import get_activation
        >>> relu = get_activation("relu")
        >>> relu.is_homogeneous, relu.derivative(np.array([-2.0, 3.0])).tolist()
        (True, [0.0, 1.0])
    """

    name: str
    value: Function
    derivative: Function
    is_homogeneous: bool = False

    def second_moment(self, variance: float) -> float:
        """``E[phi(sqrt(variance) z)^2]``."""
        return float(self._alone(variance).value[0])

    def derivative_second_moment(self, variance: float) -> float:
        """``E[phi'(sqrt(variance) z)^2]``."""
        return float(self._alone(variance).derivative[0])

    def squared_spread(self, variance: float) -> float:
        """Relative variance of phi^2, ``E[phi^4] / E[phi^2]^2 - 1``: 5 for ReLU, 2 for the identity."""
        alone = self._alone(variance)
        return float(alone.square[0] / alone.value[0] ** 2 - 1)

    def derivative_spread(self, variance: float) -> float:
        """Relative variance of phi'^2, ``E[phi'^4] / E[phi'^2]^2 - 1``: 1 for ReLU, 0 for the identity."""
        if self.name == "relu":
            return 1.0
        fourth = gaussian_mean(lambda x: self.derivative(x) ** 4, variance)
        return fourth / gaussian_mean(lambda x: self.derivative(x) ** 2, variance) ** 2 - 1

    def log_slope(self, variance: float) -> float:
        """``d ln E[phi^2] / d ln variance``: 1 for a homogeneous activation, less where it saturates."""
        if self.is_homogeneous:
            return 1.0
        step = 1e-3
        high, low = (self.second_moment(variance * math.exp(side * step)) for side in (1, -1))
        return (math.log(high) - math.log(low)) / (2 * step)

    def cosine(self, cosine: float, variance: float) -> float:
        """``E[phi(u) phi(v)] / E[phi(u)^2]`` for u, v of this variance and cosine."""
        first = np.zeros(2, dtype=int)
        both = self.kernels(np.array([float(variance)]), np.array([cosine, 1.0]), rows=first, cols=first)
        return float(both.value[0] / both.value[1])

    def kernels(self, variances: Array, cosine: Array, *, rows: Array, cols: Array) -> PairKernels:
        """The kernels of many pairs; pair p joins samples ``rows[p]`` and ``cols[p]``.

        Closed forms for ReLU and the identity, Mehler's formula for the rest.

        Shape: variances ``(samples,)``, the others ``(pairs,)``; returns three arrays ``(pairs,)``.
        """
        if self.name in _CLOSED_FORMS:
            return _CLOSED_FORMS[self.name](variances[rows] * variances[cols], cosine)
        functions = (self.value, self.derivative, lambda x: self.value(x) ** 2)
        return PairKernels(
            *(pair_mean(function, variances, rows=rows, cols=cols, cosine=cosine) for function in functions)
        )

    def _alone(self, variance: float) -> PairKernels:
        first = np.zeros(1, dtype=int)
        return self.kernels(np.array([float(variance)]), np.ones(1), rows=first, cols=first)


def _relu_kernels(product: Array, cosine: Array) -> PairKernels:
    """Arc-cosine kernels of degree 1, 0 and 2 (Cho & Saul 2009, eq. 5 to 7), ``product`` = variance_i variance_j."""
    rest = np.pi - np.arccos(cosine)
    squared = cosine * cosine
    sine = np.sqrt(np.maximum(1 - squared, 0.0))
    return PairKernels(
        value=np.sqrt(product) * (sine + rest * cosine) / (2 * np.pi),
        derivative=rest / (2 * np.pi),
        square=product * (3 * sine * cosine + rest * (1 + 2 * squared)) / (2 * np.pi),
    )


def _identity_kernels(product: Array, cosine: Array) -> PairKernels:
    return PairKernels(
        value=np.sqrt(product) * cosine,
        derivative=np.ones_like(cosine),
        square=product * (1 + 2 * cosine * cosine),
    )


_CLOSED_FORMS: dict[str, Callable[[Array, Array], PairKernels]] = {
    "relu": _relu_kernels,
    "identity": _identity_kernels,
}


def _sigmoid(x: Array) -> Array:
    return 0.5 * (1 + np.tanh(0.5 * x))


def _sigmoid_derivative(x: Array) -> Array:
    return _sigmoid(x) * (1 - _sigmoid(x))


def _normal_cdf(x: Array) -> Array:
    erf = np.frompyfunc(math.erf, 1, 1)
    return 0.5 * (1 + np.asarray(erf(x / math.sqrt(2)), dtype=float))


def _normal_density(x: Array) -> Array:
    return np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


ACTIVATIONS: tuple[Activation, ...] = (
    Activation("relu", lambda x: np.maximum(x, 0.0), lambda x: (x > 0).astype(float), is_homogeneous=True),
    Activation("identity", lambda x: x, np.ones_like, is_homogeneous=True),
    Activation("tanh", np.tanh, lambda x: 1 - np.tanh(x) ** 2),
    Activation("sigmoid", _sigmoid, _sigmoid_derivative),
    Activation("gelu", lambda x: x * _normal_cdf(x), lambda x: _normal_cdf(x) + x * _normal_density(x)),
    Activation("silu", lambda x: x * _sigmoid(x), lambda x: _sigmoid(x) + x * _sigmoid_derivative(x)),
)

ALIASES = {"swish": "silu", "linear": "identity", "none": "identity", "logistic": "sigmoid"}
"""Other words for the activations; they are suggested, not accepted."""


def get_activation(name: str) -> Activation:
    """The activation of this name.

    Raises:
        ValueError: no such activation; the nearest name is suggested.

    Examples:
        >>> get_activation("relu").second_moment(1.0)
        0.5
    """
    for activation in ACTIVATIONS:
        if activation.name == name:
            return activation
    raise unknown_name("activation", name, [activation.name for activation in ACTIVATIONS], ALIASES)
