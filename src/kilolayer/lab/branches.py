"""The residual branches of kilolayer's Transformers, and what reaches each of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kilolayer.nn.layer import TransformerLayer


@dataclass(frozen=True, eq=False)
class BranchWeights:
    """The matrices of one residual branch."""

    stack: str
    layer_index: int
    branch_index: int
    matrices: tuple[nn.Parameter, ...]


def branch_weights(model: nn.Module) -> list[BranchWeights]:
    """Every branch in order: encoder bottom to top, then decoder; ``branch_index`` counts within its stack.

    Examples:
        >>> from kilolayer.nn import CausalLM, TransformerConfig
        >>> model = CausalLM(TransformerConfig(vocab_size=8, width=16, num_heads=1, decoder_layers=3))
        >>> [branch.branch_index for branch in branch_weights(model)]
        [0, 1, 2, 3, 4, 5]
    """
    found: list[BranchWeights] = []
    counts: dict[str, int] = {}
    for layer in model.modules():
        if not isinstance(layer, TransformerLayer):
            continue
        attentions = [layer.self_attn, layer.multihead_attn] if layer.attends_to_memory else [layer.self_attn]
        parts: list[tuple[nn.Module, ...]] = [(attention,) for attention in attentions]
        for modules in (*parts, (layer.linear1, layer.linear2)):
            index = counts.get(layer.place.stack, 0)
            counts[layer.place.stack] = index + 1
            matrices = tuple(p for module in modules for p in module.parameters() if p.ndim == 2)
            found.append(BranchWeights(layer.place.stack, layer.place.layer_index or 0, index, matrices))
    return found


def grad_norms(branches: list[BranchWeights]) -> Tensor:
    """L2 norm of the gradient of each branch's matrices, ``(num_branches,)`` float64; one transfer to the host.

    A branch without gradients counts as 0.
    """
    grads = [[p.grad for p in branch.matrices if p.grad is not None] for branch in branches]
    flat = [grad for those in grads for grad in those]
    if not flat:
        return torch.zeros(len(branches), dtype=torch.float64)
    norms = iter(torch.stack(torch._foreach_norm(flat)).double().cpu())
    sums = [sum((next(norms) ** 2 for _ in those), torch.zeros((), dtype=torch.float64)) for those in grads]
    return torch.stack(sums).sqrt()
