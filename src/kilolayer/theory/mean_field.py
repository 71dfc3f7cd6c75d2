"""Infinitely wide chains without skips: fixed points, chi_1, correlation length, cosines between samples."""

from __future__ import annotations

import math

from kilolayer.theory.activations import get_activation

DEPTHS_PER_CORRELATION_LENGTH = 6.0
"""Schoenholz et al. find networks trainable down to about six correlation lengths, across tasks."""

_TOLERANCE = 1e-12
_MAX_ITERATIONS = 10_000


def next_variance(variance: float, activation: str, *, weight_variance: float, bias_variance: float = 0.0) -> float:
    """Variance of the pre-activations one layer on: ``sigma_w^2 E[phi(sqrt(q) z)^2] + sigma_b^2``.

    ``weight_variance`` is sigma_w^2 = fan_in * std^2.

    Examples:
        >>> next_variance(1.0, "relu", weight_variance=2.0)
        1.0

    Reference: Poole et al. 2016, arXiv:1606.05340, eq. 3.
    """
    return weight_variance * get_activation(activation).second_moment(variance) + bias_variance


def variance_fixed_point(
    activation: str, *, weight_variance: float, bias_variance: float = 0.0, start: float = 1.0
) -> float:
    """Variance q* at which :func:`next_variance` stands still, reached from ``start``.

    0 where signals die out, ``inf`` where they grow without bound. ReLU at sigma_w^2 = 2 keeps any variance:
    ``start`` comes back.

    Examples:
        >>> round(variance_fixed_point("tanh", weight_variance=2.25), 3)
        0.793

    Reference: Poole et al. 2016, arXiv:1606.05340, section 2.
    """
    variance = start
    for _ in range(_MAX_ITERATIONS):
        following = next_variance(variance, activation, weight_variance=weight_variance, bias_variance=bias_variance)
        if following > 1e12:
            return math.inf
        if following < 1e-9:
            return 0.0
        if abs(following - variance) < _TOLERANCE * following:
            return following
        variance = following
    return variance


def chi_one(activation: str, *, weight_variance: float, variance: float) -> float:
    """Factor per layer on the second moment of a gradient: ``chi_1 = sigma_w^2 E[phi'(sqrt(q) z)^2]``.

    Below 1 gradients vanish and samples become alike (ordered phase), above 1 gradients explode (chaotic phase).
    The RMS of a gradient changes by ``sqrt(chi_1)`` per layer.

    Examples:
        >>> chi_one("relu", weight_variance=2.0, variance=1.0)
        1.0

    Reference: Schoenholz et al. 2017, arXiv:1611.01232, eq. 5.
    """
    return weight_variance * get_activation(activation).derivative_second_moment(variance)


def correlation_length(chi: float) -> float:
    """Layers over which ``chi^l`` changes by a factor e: ``1 / |ln chi|``, ``inf`` at chi = 1.

    Raises:
        ValueError: a chi that is not positive.

    Examples:
        >>> correlation_length(math.exp(-0.25))
        4.0

    Reference: Schoenholz et al. 2017, arXiv:1611.01232, eq. 9.
    """
    if chi <= 0:
        raise ValueError(f"chi is a ratio of second moments and must be positive, got {chi}")
    return math.inf if chi == 1 else 1 / abs(math.log(chi))


def trainable_depth(chi: float) -> float:
    """Layers a chain with this chi_1 can have and still train: about six correlation lengths.

    Examples:
        >>> round(trainable_depth(0.5), 1)
        8.7

    Reference: Schoenholz et al. 2017, arXiv:1611.01232, section 4.1.
    """
    return DEPTHS_PER_CORRELATION_LENGTH * correlation_length(chi)


def cosine_map(cosine: float, activation: str = "relu", *, variance: float = 1.0) -> float:
    """Cosine between the pre-activations of two samples one layer on, without biases.

    ``c -> E[phi(u) phi(v)] / E[phi(u)^2]`` for Gaussian u, v of this variance and cosine c; for ReLU
    ``(sqrt(1 - c^2) + (pi - arccos c) c) / pi``, whatever the variance.

    Raises:
        ValueError: a cosine outside [-1, 1].

    Examples:
        >>> round(cosine_map(0.0), 4)
        0.3183

    Reference: Cho & Saul 2009, eq. 6; Poole et al. 2016, arXiv:1606.05340, eq. 5.
    """
    if not -1 <= cosine <= 1:
        raise ValueError(f"a cosine lies in [-1, 1], got {cosine}")
    return get_activation(activation).cosine(cosine, variance)


def relu_cosine_after(cosine: float, num_layers: int) -> float:
    """Cosine between two samples after so many ReLU layers: :func:`cosine_map` applied again and again.

    It tends to 1 as ``1 - c ~ 9 pi^2 / (2 l^2)``: a deep chain tells samples apart less and less.

    Raises:
        ValueError: a cosine outside [-1, 1] or a negative number of layers.

    Examples:
        >>> round(relu_cosine_after(0.0, 64), 3)
        0.992

    Reference: Hayou et al. 2019, arXiv:1902.06853, section 3.
    """
    if num_layers < 0:
        raise ValueError(f"num_layers must be >= 0, got {num_layers}")
    for _ in range(num_layers):
        cosine = cosine_map(cosine)
    return cosine
