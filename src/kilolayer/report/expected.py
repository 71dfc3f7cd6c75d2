"""What a network's own weights lead one to expect of the signal along its depth at step 0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kilolayer.recording import Recording, Site
from kilolayer.report.view import Prediction

KNOWN_PLACES = frozenset({"none", "pre", "post"})

MOST_BY_BIAS = 1.25
"""Factor on the RMS by which biases of unknown size may move the curve, were they drawn as PyTorch draws them."""


class Matrix(NamedTuple):
    """What a matrix does to a second moment: times ``gain``, plus ``bias``.

    Where the bias was not recorded, ``bias_limit`` is what PyTorch's own would add.
    """

    gain: float
    bias: float
    bias_limit: float


def expected_stream(recording: Recording) -> Prediction | None:
    r"""RMS of the stream after each block, from the parameters at step 0 and the RMS after the first block.

    A second moment u becomes ``fan_in * std^2 * u + mean(bias^2)`` in each matrix and half of it in each ReLU. With v
    that of the stream, g(u) that of the branch's end, and a and c the skip and branch scales,

        ``v' = a^2 v + c^2 g(u)``, where u is v, or 1 behind a norm; v' = 1 where a norm follows the sum.

    Matrices are taken to be independent and without mean, norms to have scale 1: what holds for a fresh network.

    Returns:
        the curve, or ``None`` where the formula does not apply or what it needs was not recorded: ReLU blocks with
        norms in front of the branch or behind the sum only, fixed scales, parameters and signal of step 0.

    Reference: He et al. 2015, arXiv:1502.01852, eq. 10; Zhang et al. 2019, arXiv:1901.09321, section 2.
    """
    stream = recording.stream()
    if len(stream) < 2 or not all(map(_is_known, stream)):
        return None
    first = float(recording.curve("activation", "rms", stream[:1], 0)[0])
    blocks = _matrices(recording, stream)
    if blocks is None or not (np.isfinite(first) and first > 0):
        return None
    curves = []
    for share in (0.0, 1.0):
        moments = [first**2]
        for site, matrices in zip(stream[1:], blocks[1:], strict=True):
            moments.append(_after(site, moments[-1], matrices, bias_share=share))
        curves.append(np.sqrt(moments))
    low, high = curves
    if (high > MOST_BY_BIAS * low).any():
        return None
    return Prediction("activation", "rms", tuple(site.name for site in stream), low)


def _is_known(site: Site) -> bool:
    places = set(site.norm_placement.split("+"))
    fixed = all(scale is None or isinstance(scale, (int, float)) for scale in (site.skip_scale, site.branch_scale))
    return site.activation == "relu" and places <= KNOWN_PLACES and fixed


def _matrices(recording: Recording, stream: Sequence[Site]) -> list[list[Matrix]] | None:
    """The matrices of each block in order; ``None`` where a block has none, or one of unknown size."""
    weights = recording.weights()
    known = {site.name for site in recording.sites}
    biases = [f"{site.path}.bias" for site in weights]
    norms = recording.curve("param", "l2_norm", weights, 0)
    bias_norms = recording.curve("param", "l2_norm", biases, 0)
    by_block: dict[int | None, list[Matrix]] = {site.block_index: [] for site in stream}
    for site, bias, norm, bias_norm in zip(weights, biases, norms, bias_norms, strict=True):
        if site.shape is None or len(site.shape) != 2 or not np.isfinite(norm) or site.block_index not in by_block:
            return None
        out_features, fan_in = site.shape
        is_open = bias in known and not np.isfinite(bias_norm)
        bias_moment = float(bias_norm) ** 2 / out_features if np.isfinite(bias_norm) else 0.0
        limit = 1 / (3 * fan_in) if is_open else 0.0
        by_block[site.block_index].append(Matrix(float(norm) ** 2 / out_features, bias_moment, limit))
    found = [by_block[site.block_index] for site in stream]
    return found if all(found) else None


def _after(site: Site, moment: float, matrices: Sequence[Matrix], *, bias_share: float) -> float:
    """The stream's second moment after a block, with a share of what biases of unknown size could add."""
    places = site.norm_placement.split("+")
    if "post" in places:
        return 1.0
    branch = 1.0 if "pre" in places else moment
    for place, matrix in enumerate(matrices):
        # Without a skip the stream is read in front of the ReLU.
        rectified = place > 0 or site.skip_scale is None
        branch = matrix.gain * branch * (0.5 if rectified else 1.0) + matrix.bias + bias_share * matrix.bias_limit
    if site.branch_scale is not None:
        branch *= float(site.branch_scale) ** 2
    return branch if site.skip_scale is None else float(site.skip_scale) ** 2 * moment + branch
