"""What stands at every residual sum of a network: skip, branch and norm, read while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from kilolayer.nn import Residual
from kilolayer.nn.layer import TransformerLayer


@dataclass(eq=False)
class ResidualSum:
    """One residual branch in one forward pass.

    Attributes:
        skip: the stream that enters.
        skip_part: what the skip brings to the sum, its scale included.
        total: the sum, in front of a post-norm.
        norm: the norm behind the sum, else the one in front of the branch, if any.
        norm_in: what that norm reads.
        matrices: the branch's weights.
    """

    skip: Tensor
    skip_part: Tensor
    total: Tensor
    norm: nn.Module | None
    norm_in: Tensor
    matrices: tuple[nn.Parameter, ...]

    @property
    def branch_part(self) -> Tensor:
        """What the branch brings to the sum, its scale included."""
        return self.total.detach() - self.skip_part


@contextmanager
def watched_sums(network: nn.Module) -> Iterator[list[ResidualSum]]:
    """The sums of every forward pass inside the block, in order of computation; the network is left as it was.

    A Transformer layer computes its sums in a method, :meth:`TransformerLayer.join`, which is wrapped. Layers have to
    be built with ``recompute_activations=False``: the lean way may compute a sum without that method.
    """
    sums: list[ResidualSum] = []
    layers = [module for module in network.modules() if isinstance(module, TransformerLayer)]
    blocks = [module for module in network.modules() if isinstance(module, Residual)]
    handles: list[Any] = []
    for layer in layers:
        layer.__dict__["join"] = partial(_join_watched, sums, layer, layer.join)
    for block in blocks:
        read = block if block.post_norm is None else block.post_norm
        totals: list[Tensor] = []
        if block.post_norm is not None:
            handles.append(read.register_forward_pre_hook(partial(_keep_input, totals)))
        handles.append(block.register_forward_hook(partial(_end_block, sums, totals)))
    try:
        yield sums
    finally:
        for layer in layers:
            del layer.__dict__["join"]
        for handle in handles:
            handle.remove()


def branch_variances(network: nn.Module, inputs: Tensor) -> list[float]:
    """Variance of what every branch brings to its sum."""
    with watched_sums(network) as sums, torch.no_grad():
        network(inputs)
    return [float(one.branch_part.var()) for one in sums]


def _join_watched(
    sums: list[ResidualSum],
    layer: TransformerLayer,
    join: Callable[..., Tensor],
    number: int,
    branch_out: Tensor,
    skip: Tensor,
    layer_in: Tensor,
) -> Tensor:
    total = join(number, branch_out, skip, layer_in)
    scales = layer.scales[number - 1]
    skip_scale = getattr(layer, f"skip_scale{number}").detach() if scales.skip_learned else scales.skip_scale
    skip_part = skip_scale * skip.detach() + scales.layer_skip_scale * layer_in.detach()
    post_norm = layer.norm_in("post", number)
    norm = layer.norm_in("pre", number) if post_norm is None else post_norm
    parts: tuple[nn.Module, ...] = (layer.linear1, layer.linear2) if number > 1 else (layer.self_attn,)
    matrices = tuple(p for part in parts for p in part.parameters() if p.ndim == 2)
    sums.append(ResidualSum(skip, skip_part, total, norm, skip if post_norm is None else total, matrices))
    return total


def _keep_input(totals: list[Tensor], module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    totals.append(inputs[0])


def _end_block(
    sums: list[ResidualSum], totals: list[Tensor], block: Residual, inputs: tuple[Tensor, ...], output: Tensor
) -> None:
    total = totals.pop() if block.post_norm is not None else output
    scale = block.skip_scale.detach() if isinstance(block.skip_scale, Tensor) else block.skip_scale
    norm = block.pre_norm if block.post_norm is None else block.post_norm
    norm_in = inputs[0] if block.post_norm is None else total
    matrices = tuple(p for p in block.branch.parameters() if p.ndim == 2)
    sums.append(ResidualSum(inputs[0], scale * inputs[0].detach(), total, norm, norm_in, matrices))
