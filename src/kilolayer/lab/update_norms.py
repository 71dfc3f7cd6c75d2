"""The Jacobian of a norm: by its formula, and measured with Jacobian-vector products."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kilolayer.lab.jacobian_vector import push_forward

REMOVED_BELOW = 1e-2
"""Singular values below this share of the largest count as removed; eps leaves 1e-5 of an input of variance 1."""


@dataclass(frozen=True)
class Spectrum:
    """Singular values of a norm's Jacobian at one token.

    Attributes:
        largest, median, smallest: of the values that are not removed.
        num_removed: directions that no gradient passes.
    """

    largest: float
    median: float
    smallest: float
    num_removed: int


def norm_jacobian(norm: nn.Module, x: Tensor) -> Tensor:
    """The Jacobian by formula: ``diag(gain) (I - 1 1^T / n - y y^T / n) / s``.

    y is the input, centered and divided by ``s = sqrt(variance + eps)``; RMSNorm does not center, and its s is the
    root mean square. With all gains 1 the singular values are 1/s for all directions but two: 0 for the mean, and
    ``eps / (variance + eps)`` of the others' for the input itself.

    Shape: ``(*, n) -> (*, n, n)``.

    Raises:
        TypeError: a norm of another kind.
    """
    gain, y, scale = _parts(norm, x)
    width = x.shape[-1]
    kept = torch.eye(width, dtype=x.dtype) - y.unsqueeze(-1) * y.unsqueeze(-2) / width
    if isinstance(norm, nn.LayerNorm):
        kept = kept - 1 / width
    return gain.unsqueeze(-1) * kept / scale.unsqueeze(-1)


def expected_gain(norm: nn.Module, x: Tensor) -> float:
    """RMS factor of the Jacobian on random directions, over all tokens: root of the mean of ``|J|_F^2 / n``."""
    gain, y, scale = _parts(norm, x)
    width = x.shape[-1]
    # Squared length of the Jacobian's rows; y has mean 0 and mean square just below 1.
    rows = 1 - y.square() * (2 - y.square().mean(-1, keepdim=True)) / width
    if isinstance(norm, nn.LayerNorm):
        rows = rows - 1 / width
    return float((gain.square() * rows / scale.square()).mean().sqrt())


def measured_gain(norm: nn.Module, x: Tensor, generator: torch.Generator) -> float:
    """The same from one Jacobian-vector product per token, with standard normal vectors."""
    vectors = torch.randn(x.shape, dtype=x.dtype, generator=generator)
    out = push_forward(norm, x, vectors)[1]
    return float(out.square().mean().sqrt() / vectors.square().mean().sqrt())


def measured_jacobian(norm: nn.Module, token: Tensor) -> Tensor:
    """The Jacobian at one token, column by column from Jacobian-vector products.

    Shape: ``(n,) -> (n, n)``.
    """
    width = len(token)
    tokens, directions = token.repeat(width, 1), torch.eye(width, dtype=token.dtype)
    return push_forward(norm, tokens, directions)[1].T


def spectrum(jacobian: Tensor) -> Spectrum:
    """Singular values of one Jacobian.

    Shape: ``(n, n)``.
    """
    values = torch.linalg.svdvals(jacobian)
    kept = values[values > REMOVED_BELOW * values[0]]
    return Spectrum(float(kept[0]), float(kept.median()), float(kept[-1]), len(values) - len(kept))


def _parts(norm: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gain, normalized input and what the input was divided by."""
    if isinstance(norm, nn.LayerNorm):
        x = x - x.mean(-1, keepdim=True)
    elif not isinstance(norm, nn.RMSNorm):
        raise TypeError(f"the formula is that of LayerNorm and RMSNorm, got {type(norm).__name__}")
    eps = torch.finfo(x.dtype).eps if norm.eps is None else norm.eps
    scale = (x.square().mean(-1, keepdim=True) + eps).sqrt()
    gain = torch.ones(x.shape[-1], dtype=x.dtype) if norm.weight is None else norm.weight.detach()
    return gain, x / scale, scale
