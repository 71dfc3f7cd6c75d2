"""Blocks that receive their parts: where norms stand is decided by which slot is filled."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kilolayer.nn.activations import Activation


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
    """``linear2(inner_norm(activation(linear1(x))))``, the norm optional.

    Shape: ``(*, in_features) -> (*, in_features)``.

    Examples:
        >>> FeedForward(8, 16)(torch.zeros(2, 8)).shape
        torch.Size([2, 8])
    """

    def __init__(
        self, width: int, hidden: int, *, activation: Activation = F.relu, inner_norm: nn.Module | None = None
    ):
        super().__init__()
        self.linear1 = build_linear(width, hidden)
        self.activation = activation
        self.inner_norm = inner_norm
        self.linear2 = build_linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.linear1(x)
        # In place: a linear layer keeps its input for the backward, not its output.
        h = F.relu(h, inplace=True) if self.activation is F.relu else self.activation(h)
        return self.linear2(h if self.inner_norm is None else self.inner_norm(h))


class ChainBlock(nn.Module):
    """A block without skip: ``activation(norm(linear(x)))``, the norm optional.

    Shape: ``(batch, width) -> (batch, width)``.

    Examples:
        >>> import torch
        >>> ChainBlock(nn.Linear(4, 4), nn.LayerNorm(4), activation=torch.relu)(torch.randn(2, 4)).shape
        torch.Size([2, 4])
    """

    def __init__(self, linear: nn.Module, norm: nn.Module | None = None, *, activation: Activation | None = None):
        super().__init__()
        self.linear = linear
        self.norm = norm
        self.activation = nn.ReLU() if activation is None else activation

    def forward(self, x: Tensor) -> Tensor:
        h = self.linear(x)
        if self.norm is not None:
            h = self.norm(h)
        return self.activation(h)


class ScaledNorm(nn.Module):
    """``scale * norm(x)``, for a norm slot whose output a scheme scales.

    Shape: ``(*, width) -> (*, width)``.

    Examples:
        >>> import torch
        >>> ScaledNorm(nn.LayerNorm(4), 0.5)(torch.randn(2, 4)).std(correction=0, dim=-1).round(decimals=2).tolist()
        [0.5, 0.5]
    """

    def __init__(self, norm: nn.Module, scale: float):
        super().__init__()
        self.norm = norm
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x) * self.scale

    def extra_repr(self) -> str:
        return f"scale={self.scale:.6g}"


class Residual(nn.Module):
    """``post_norm(skip_scale * x + branch_scale * end_norm(branch(pre_norm(x))))``, every norm optional.

    Post-LN fills ``post_norm``, pre-LN ``pre_norm``, sandwich-LN ``pre_norm`` and ``end_norm``; DeepNorm is
    post-LN with ``skip_scale`` > 1. A scale that is trained is an :class:`torch.nn.Parameter`, of one entry or
    of one per channel; several branches may share it.

    Shape: ``(*, width) -> (*, width)``.

    Examples:
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
        skip_scale: float | nn.Parameter = 1.0,
        branch_scale: float | nn.Parameter = 1.0,
    ):
        super().__init__()
        self.pre_norm = pre_norm
        self.branch = branch
        self.end_norm = end_norm
        self.post_norm = post_norm
        self.skip_scale = skip_scale
        self.branch_scale = branch_scale

    def forward(self, x: Tensor, around: Tensor | None = None) -> Tensor:
        """The block's output; ``around`` is one more term of the sum, see :class:`BridgedLayer`."""
        branch_out = self.branch(x if self.pre_norm is None else self.pre_norm(x))
        if self.end_norm is not None:
            branch_out = self.end_norm(branch_out)
        if isinstance(self.branch_scale, Tensor) or self.branch_scale != 1.0:
            branch_out = self.branch_scale * branch_out
        if isinstance(self.skip_scale, Tensor):
            total = self.skip_scale * x + branch_out
        else:
            total = torch.add(branch_out, x, alpha=self.skip_scale)
        if around is not None:
            total = total + around
        return total if self.post_norm is None else self.post_norm(total)

    def extra_repr(self) -> str:
        scales = {"skip_scale": self.skip_scale, "branch_scale": self.branch_scale}
        return ", ".join(
            f"{name}={'trained' if isinstance(scale, Tensor) else f'{scale:.6g}'}" for name, scale in scales.items()
        )


class BridgedLayer(nn.Module):
    """Residual branches one behind the other, the last of which adds ``layer_skip_scale`` times the layer's input.

    Shape: ``(*, width) -> (*, width)``.

    Examples:
        >>> import torch
        >>> branches = [Residual(nn.Linear(4, 4)), Residual(nn.Linear(4, 4), post_norm=nn.LayerNorm(4))]
        >>> BridgedLayer(branches, 1.0)(torch.randn(2, 4)).shape
        torch.Size([2, 4])

    Reference: Takase et al. 2022, arXiv:2206.00330, eq. 5 (B2T connection).
    """

    def __init__(self, branches: Sequence[Residual], layer_skip_scale: float):
        super().__init__()
        self.branches = nn.ModuleList(branches)
        self.layer_skip_scale = layer_skip_scale

    def forward(self, x: Tensor) -> Tensor:
        *before, last = self.branches
        h = x
        for branch in before:
            h = branch(h)
        return last(h, self.layer_skip_scale * x)

    def extra_repr(self) -> str:
        return f"layer_skip_scale={self.layer_skip_scale:.6g}"
