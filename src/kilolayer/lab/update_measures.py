"""What ``kilolayer lab update`` reads of a network at one moment: by branch, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kilolayer.lab.branches import BranchWeights, grad_norms
from kilolayer.lab.update_network import NO_TARGET, UpdateNetwork
from kilolayer.lab.update_norms import expected_gain, measured_gain, measured_jacobian, norm_jacobian, spectrum
from kilolayer.lab.update_probe import ResidualSum, watched_sums

NUM_SPECTRA = 8
"""Branches whose norm is taken apart into singular values, evenly spaced."""


def measure(network: UpdateNetwork, inputs: Tensor, targets: Tensor, *, seed: int) -> dict[str, Any]:
    """One forward and one backward pass; gradients are left at ``None``.

    Lists by branch, from the bottom:

    - ``branch_to_skip``: RMS of the branch over that of the skip in the sum.
    - ``neighbor_cosine``: between the stream in front of and behind the branch, mean over tokens.
    - ``input_cosine``: between the stream behind the branch and what entered the stack.
    - ``token_cosine``: between the streams of two tokens (samples) behind the branch, mean over all pairs.
    - ``sum_max_abs``: largest entry of the sum.
    - ``grad_norm_by_branch``: L2 norm of the gradient of the branch's matrices.
    - ``norm_gain``, ``norm_gain_expected``: RMS factor of the norm's Jacobian on random directions, measured and by
      formula; ``None`` where the branch has no norm.

    ``stream_rms`` and ``stream_grad_rms`` have one entry more, the first for what enters the stack. ``spectra`` holds
    singular values at a few branches, measured and by formula.
    """
    with watched_sums(network) as sums:
        top = _run(network, sums, inputs, targets)
    streams = [*(one.skip for one in sums), top]
    result = _forward(sums, [stream.detach() for stream in streams])
    result["stream_grad_rms"] = [_rms(stream.grad) for stream in streams]
    branches = [BranchWeights("", index, index, one.matrices) for index, one in enumerate(sums)]
    result["grad_norm_by_branch"] = grad_norms(branches).tolist()
    network.zero_grad(set_to_none=True)
    return result | _norms(sums, seed)


def _run(network: UpdateNetwork, sums: list[ResidualSum], inputs: Tensor, targets: Tensor) -> Tensor:
    """The stream behind the last branch, its gradient and those of the sums' skips kept."""
    x = network.stream(network.entry(inputs))
    assert sums, "a network without residual sums, or one that computes them out of sight"
    # A post-norm's output is not among the sums, and a final norm's is no stream: it is a function of the last sum.
    top = x if _ends_in_post_norm(network, sums) else sums[-1].total
    for tensor in (*(one.skip for one in sums), top):
        tensor.retain_grad()
    logits = network.head(x)
    F.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=NO_TARGET).backward()
    return top


def _ends_in_post_norm(network: UpdateNetwork, sums: list[ResidualSum]) -> bool:
    return sums[-1].norm is not None and sums[-1].norm_in is sums[-1].total


def _forward(sums: Sequence[ResidualSum], streams: Sequence[Tensor]) -> dict[str, Any]:
    pairs = list(pairwise(streams))
    return {
        "branch_to_skip": [_rms(one.branch_part) / _rms(one.skip_part) for one in sums],
        "neighbor_cosine": [_cosine(before, behind) for before, behind in pairs],
        "input_cosine": [_cosine(streams[0], behind) for behind in streams[1:]],
        "token_cosine": [_token_cosine(behind) for behind in streams[1:]],
        "sum_max_abs": [float(one.total.detach().abs().max()) for one in sums],
        "stream_rms": [_rms(stream) for stream in streams],
    }


def _norms(sums: Sequence[ResidualSum], seed: int) -> dict[str, Any]:
    if any(one.norm is None for one in sums):
        return {"norm_gain": None, "norm_gain_expected": None, "spectra": []}
    generator = torch.Generator().manual_seed(seed)
    gains, expected = [], []
    for one in sums:
        assert one.norm is not None
        with torch.no_grad():
            gains.append(measured_gain(one.norm, one.norm_in.detach(), generator))
            expected.append(expected_gain(one.norm, one.norm_in.detach()))
    count = min(NUM_SPECTRA, len(sums))
    chosen = sorted({round(index * (len(sums) - 1) / max(count - 1, 1)) for index in range(count)})
    spectra = [_spectra(index, sums[index]) for index in chosen]
    return {"norm_gain": gains, "norm_gain_expected": expected, "spectra": spectra}


def _spectra(branch_index: int, one: ResidualSum) -> dict[str, Any]:
    """Of the batch's first token."""
    norm: nn.Module | None = one.norm
    assert norm is not None
    token = one.norm_in.detach().flatten(0, -2)[0]
    with torch.no_grad():
        measured, formula = spectrum(measured_jacobian(norm, token)), spectrum(norm_jacobian(norm, token))
    return {"branch_index": branch_index, "measured": asdict(measured), "formula": asdict(formula)}


def _rms(tensor: Tensor | None) -> float:
    return 0.0 if tensor is None else float(tensor.detach().square().mean().sqrt())


def _cosine(a: Tensor, b: Tensor) -> float:
    return float(F.cosine_similarity(a, b, dim=-1).mean())


def _token_cosine(stream: Tensor) -> float:
    """Mean over all pairs of two different rows."""
    unit = F.normalize(stream.flatten(0, -2), dim=-1)
    count = len(unit)
    return (float(unit.sum(0).square().sum()) - float(unit.square().sum())) / (count * (count - 1))
