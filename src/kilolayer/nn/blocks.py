"""Blocks that receive their parts: where norms stand is decided by which slot is filled."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def build_linear(
    in_features: int,
    out_features: int,
    *,
    bias: bool = True,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> nn.Linear:
    """A linear layer whose values are left to an initialisation plan: no draw from the global generator."""
    # skip_init falls back to the CPU, past a `with torch.device("meta")` around the caller.
    device = torch.get_default_device() if device is None else device
    return nn.utils.skip_init(nn.Linear, in_features, out_features, bias=bias, device=device, dtype=dtype)


class FeedForward(nn.Module):
    """``linear2(relu(linear1(x)))``.

    Shape: ``(*, in_features) -> (*, in_features)``.

    Example:
        >>> FeedForward(8, 16)(torch.zeros(2, 8)).shape
        torch.Size([2, 8])
    """

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.linear1 = build_linear(width, hidden)
        self.linear2 = build_linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        # In place: a linear layer keeps its input for the backward, not its output.
        return self.linear2(F.relu(self.linear1(x), inplace=True))


class ChainBlock(nn.Module):
    """A block without skip: ``relu(norm(linear(x)))``, the norm optional.

    Shape: ``(batch, width) -> (batch, width)``.
    """

    def __init__(self, linear: nn.Module, norm: nn.Module | None = None):
        super().__init__()
        self.linear = linear
        self.norm = norm
        self.activation = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        h = self.linear(x)
        if self.norm is not None:
            h = self.norm(h)
        return self.activation(h)


class Residual(nn.Module):
    """``post_norm(skip_scale * x + branch_scale * end_norm(branch(pre_norm(x))))``, every norm optional.

    Post-LN fills ``post_norm``, pre-LN ``pre_norm``, sandwich-LN ``pre_norm`` and ``end_norm``; DeepNorm is
    post-LN with ``skip_scale`` > 1.

    Shape: ``(*, width) -> (*, width)``.

    Example:
        >>> block = Residual(FeedForward(8, 8), post_norm=nn.LayerNorm(8), skip_scale=1.5)
        >>> block(torch.ones(2, 8)).shape
        torch.Size([2, 8])
    """

    def __init__(
        self,
        branch: nn.Module,
        *,
        pre_norm: nn.Module | None = None,
        end_norm: nn.Module | None = None,
        post_norm: nn.Module | None = None,
        skip_scale: float = 1.0,
        branch_scale: float = 1.0,
    ):
        super().__init__()
        self.pre_norm = pre_norm
        self.branch = branch
        self.end_norm = end_norm
        self.post_norm = post_norm
        self.skip_scale = skip_scale
        self.branch_scale = branch_scale

    def forward(self, x: Tensor) -> Tensor:
        branch_out = self.branch(x if self.pre_norm is None else self.pre_norm(x))
        if self.end_norm is not None:
            branch_out = self.end_norm(branch_out)
        if self.branch_scale != 1.0:
            branch_out = self.branch_scale * branch_out
        total = torch.add(branch_out, x, alpha=self.skip_scale)
        return total if self.post_norm is None else self.post_norm(total)

    def extra_repr(self) -> str:
        return f"skip_scale={self.skip_scale:.6g}, branch_scale={self.branch_scale:.6g}"
