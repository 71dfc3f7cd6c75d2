"""The profiling pass of a scheme that takes its scales from measured branches, as Admin does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from kilolayer.nn.layer import TransformerLayer
from kilolayer.schemes import Profile, Stack


def profile_branches(model: nn.Module, *inputs: Any) -> Profile:
    """The output variance of every branch of every stack, in order, in one forward pass.

    For Admin the model is the same network under ``"post-ln"``, at its initial values, on a typical batch.
    It runs in evaluation mode, without gradients, and is left as it was.

    Args:
        model: a model of kilolayer's Transformer layers.
        inputs: what the model is called with.

    Raises:
        ValueError: a model without such layers, or with a layer that runs never or more than once.

    Examples:
        >>> from kilolayer.nn import CausalLM, TransformerConfig
        >>> from kilolayer.schemes import get_scheme
        >>> sizes = {"vocab_size": 20, "width": 16, "num_heads": 2, "decoder_layers": 4}
        >>> model = CausalLM(TransformerConfig(**sizes, scheme="post-ln"))
        >>> profile = profile_branches(model, torch.randint(20, (8, 16)))
        >>> admin = get_scheme("admin").with_profile(profile)
        >>> CausalLM(TransformerConfig(**sizes, scheme=admin)).decoder.layers[0].skip_scale1[0].item()
        1.0

    Reference: Liu et al. 2020, arXiv:2004.08249, section 4.
    """
    layers = [module for module in model.modules() if isinstance(module, TransformerLayer)]
    if not layers:
        raise ValueError(
            f"{type(model).__name__} has none of kilolayer's Transformer layers, so no branches to profile"
        )
    variances: dict[Stack, list[float]] = {}
    with _evaluating(model), _recording(layers) as outputs, torch.no_grad():
        model(*inputs)
        for layer in layers:
            for module in _branch_ends(layer):
                seen = outputs[module]
                if len(seen) != 1:
                    where = f"layer {layer.place.layer_index} of the {layer.place.stack}"
                    raise ValueError(f"a branch of {where} ran {len(seen)} times instead of once")
                variances.setdefault(layer.place.stack, []).append(seen[0])
    return variances


def _branch_ends(layer: TransformerLayer) -> list[nn.Module]:
    attentions = [layer.self_attn, layer.multihead_attn] if layer.attends_to_memory else [layer.self_attn]
    return [*attentions, layer.linear2]


@contextmanager
def _recording(layers: list[TransformerLayer]) -> Iterator[dict[nn.Module, list[float]]]:
    outputs: dict[nn.Module, list[float]] = {module: [] for layer in layers for module in _branch_ends(layer)}

    def record(module: nn.Module, inputs: Any, output: Tensor) -> None:
        outputs[module].append(output.float().var().item())

    handles = [module.register_forward_hook(record) for module in outputs]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
