"""The number that stands for a factor: the mean of a small tensor that no input had a part in."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

LARGEST_CONSTANT = 16_384
"""Entries; tensors without an input's part in them are looked at up to this size: it holds factors per channel."""


def read_mean(tensor: Tensor) -> float | None:
    """The mean over all entries; ``None`` where the numbers are not there or too many to look at."""
    # Meta tensors have no data, and reading that of a fake one is an error.
    if type(tensor) not in (Tensor, nn.Parameter, nn.Buffer) or tensor.is_meta or tensor.layout is not torch.strided:
        return None
    if not 0 < tensor.numel() <= LARGEST_CONSTANT or tensor.is_complex():
        return None
    with _disable_current_modes(), torch.no_grad():
        entries = tensor.detach()
        return float(entries) if entries.numel() == 1 else float(entries.mean(dtype=torch.float64))
