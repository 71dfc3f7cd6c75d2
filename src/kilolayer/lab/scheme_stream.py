"""The networks that theory predicts, built and measured: one forward and one backward pass at initialization."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from kilolayer.init import InitPlan, InitRow, apply_init
from kilolayer.nn import BridgedLayer, ChainBlock, Residual, build_block
from kilolayer.schemes import BranchScales
from kilolayer.theory import NetworkSpec

Array = np.ndarray


@dataclass(frozen=True)
class Measured:
    """One draw of a network.

    Attributes:
        stream: RMS of the stream, at what enters the stack and behind every branch. Shape: ``(branches + 1,)``.
        gradient: RMS of the gradient at the same tensors over that at the last. Shape: ``(branches + 1,)``.
        largest: largest absolute value in any of these tensors.
    """

    stream: Array
    gradient: Array
    largest: float


def measure_scheme(network: NetworkSpec, *, batch_size: int, seed: int) -> Measured:
    """Draw a network, send standard normal inputs up and standard normal gradients down.

    In float64: without norms a thousand branches pass the range of float32. A scheme that wants a profile gets the
    one measured on this draw.

    Raises:
        ValueError: an unknown activation or norm.

    Examples:
        >>> measured = measure_scheme(NetworkSpec(scheme="post-ln", num_layers=3, width=16), batch_size=8, seed=0)
        >>> measured.stream.shape, round(float(measured.stream[-1]), 3), float(measured.gradient[-1])
        ((4,), 1.0, 1.0)
    """
    if network.resolved_scheme.needs_profile:
        network = _with_measured_profile(network, batch_size=batch_size, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    # Gradients of the stream only: those of the weights would cost half as much again.
    stack = build_stack(network, generator=generator).requires_grad_(False)
    shape = (batch_size, network.width)
    inputs = torch.randn(shape, dtype=torch.float64, generator=generator, requires_grad=True)
    tensors = _run(stack, inputs)
    for tensor in tensors:
        tensor.retain_grad()
    tensors[-1].backward(torch.randn(shape, dtype=torch.float64, generator=generator))
    gradients = np.array([_rms(tensor.grad) for tensor in tensors])
    return Measured(
        stream=np.array([_rms(tensor) for tensor in tensors]),
        gradient=gradients / gradients[-1],
        largest=max(float(tensor.detach().abs().max()) for tensor in tensors),
    )


def build_stack(network: NetworkSpec, *, generator: torch.Generator | None = None) -> nn.Sequential:
    """The layers of a network at their initial values, in float64: blocks, or bridged layers of several.

    Raises:
        ValueError: an unknown activation or norm, or a scheme that wants a profile first.
    """
    scales = network.scales()
    blocks = [build_block(one, network.width, network.norm, activation=network.activation) for one in scales]
    rows = [row for index, block in enumerate(blocks) for row in _plan(block, f"{index}.", network, scales[index])]
    whole = nn.Sequential(*blocks)
    # Matrices are drawn in float32, several times faster, and widened; constants such as 0.1 are set in float64.
    apply_init(whole, InitPlan(tuple(rows)), generator=generator)
    apply_init(whole.double(), InitPlan(tuple(row if row.fill == "constant" else _kept(row) for row in rows)))
    per_layer = network.branches_per_layer
    layers: list[nn.Module] = []
    for first in range(0, len(blocks), per_layer):
        layer, bridged = blocks[first : first + per_layer], scales[first + per_layer - 1].layer_skip_scale
        layers += [BridgedLayer([_residual(block) for block in layer], bridged)] if bridged else layer
    return nn.Sequential(*layers)


def _kept(row: InitRow) -> InitRow:
    return replace(row, fill="keep")


def _residual(block: nn.Module) -> Residual:
    assert isinstance(block, Residual)
    return block


def _plan(block: nn.Module, prefix: str, network: NetworkSpec, scales: BranchScales) -> Iterator[InitRow]:
    """One row per parameter of a block: the network's init times the scheme's gains."""
    for name, _ in block.named_parameters():
        owner, _, kind = f"{prefix}{name}".rpartition(".")
        if name in ("skip_scale", "branch_scale"):
            yield InitRow(f"{prefix}{name}", "constant", 0.0, "the scheme's first value", value=getattr(scales, name))
        elif kind == "weight" and "linear" in owner:
            is_last = owner.endswith("linear2")
            gain = scales.gain("feedforward_out" if is_last else "feedforward_in")
            std = gain * network.weight_std(before_activation=not is_last)
            fill = "orthogonal" if network.init == "orthogonal" else "normal"
            yield InitRow(f"{prefix}{name}", fill if std else "zeros", std, network.init)
        else:
            yield InitRow(f"{prefix}{name}", "ones" if kind == "weight" else "zeros", 0.0, "norm at the identity")


def _run(stack: nn.Sequential, inputs: Tensor) -> list[Tensor]:
    """What enters the stack, and the stream behind every branch: in a chain, in front of the activation."""
    tensors = [inputs]

    def record(module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
        tensors.append(output)

    blocks = [module for module in stack.modules() if isinstance(module, (ChainBlock, Residual))]
    handles = [_read_at(block).register_forward_hook(record) for block in blocks]
    try:
        stack(inputs)
    finally:
        for handle in handles:
            handle.remove()
    return tensors


def _read_at(block: nn.Module) -> nn.Module:
    if isinstance(block, ChainBlock):
        return block.linear if block.norm is None else block.norm
    return block


def _with_measured_profile(network: NetworkSpec, *, batch_size: int, seed: int) -> NetworkSpec:
    """Admin's profiling pass: post-LN with the same draws, the variance of every branch's output."""
    generator = torch.Generator().manual_seed(seed)
    stack = build_stack(replace(network, scheme="post-ln"), generator=generator)
    inputs = torch.randn(batch_size, network.width, dtype=torch.float64, generator=generator)
    variances: list[float] = []

    def record(module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
        variances.append(float(output.var()))

    handles = [_residual(block).branch.register_forward_hook(record) for block in stack]
    with torch.no_grad():
        stack(inputs)
    for handle in handles:
        handle.remove()
    return replace(network, scheme=network.resolved_scheme.with_profile({"encoder": variances}))


def _rms(tensor: Tensor | None) -> float:
    assert tensor is not None
    return float(tensor.detach().square().mean().sqrt())
