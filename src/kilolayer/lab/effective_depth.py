"""How many layers of a trained encoder-decoder matter: what the loss becomes when each of them is skipped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kilolayer.nn import Seq2Seq
from kilolayer.train.pair_batches import Batch
from kilolayer.train.subwords import PAD

STACKS = ("encoder", "decoder")


def sampled_layers(num_layers: int, samples: int) -> list[int]:
    """At most ``samples`` layers in even steps, the first and the last among them, 0-based.

    Examples:
        >>> sampled_layers(500, 5), sampled_layers(3, 5)
        ([0, 125, 250, 374, 499], [0, 1, 2])
    """
    if samples < 1:
        raise ValueError(f"depth_samples must be >= 1, got {samples}")
    return [int(one) for one in np.unique(np.linspace(0, num_layers - 1, min(samples, num_layers)).round())]


@torch.no_grad()
def measure_skips(
    model: Seq2Seq, batch: Batch, *, samples: int, on_part: Callable[[], None] = lambda: None
) -> dict[str, dict[str, list]]:
    """The change of the loss, in nats per token, when one layer is skipped: its output is its input.

    One pass through the network keeps the stream in front of every sampled layer; each skip then costs the layers
    above only. A layer that the loss falls without has a negative change.

    Args:
        model: after training.
        batch: pairs that it was not trained on.
        samples: layers of each stack, evenly spaced.
        on_part: called between the skips.

    Returns:
        for each stack, ``layer`` (0-based) and ``loss_change`` of the sampled layers.
    """
    model.eval()
    wanted = {stack: sampled_layers(len(getattr(model, stack).layers), samples) for stack in STACKS}
    inputs: dict[tuple[str, int], tuple[Any, ...]] = {}
    hooks = [
        getattr(model, stack).layers[index].register_forward_pre_hook(_keeper(inputs, (stack, index)))
        for stack in STACKS
        for index in wanted[stack]
    ]
    try:
        logits = model(batch.source, batch.target_in, source_padding=batch.source_padding)
    finally:
        for hook in hooks:
            hook.remove()
    before = _loss(logits, batch)
    changes: dict[str, dict[str, list]] = {}
    for stack in STACKS:
        changes[stack] = {"layer": wanted[stack], "loss_change": []}
        for index in wanted[stack]:
            x, context = inputs[stack, index]
            changes[stack]["loss_change"].append(_loss_above(model, batch, stack, index, x, context) - before)
            on_part()
    return changes


def _keeper(inputs: dict[tuple[str, int], tuple[Any, ...]], key: tuple[str, int]) -> Callable[..., None]:
    def keep(module: nn.Module, arguments: tuple[Any, ...]) -> None:
        inputs[key] = arguments

    return keep


def _loss_above(model: Seq2Seq, batch: Batch, stack: str, index: int, x: Tensor, context: Any) -> float:
    """The loss when what goes into layer ``index`` comes out of it."""
    part = getattr(model, stack)
    for layer in part.layers[index + 1 :]:
        x = layer(x, context)
    if part.norm is not None:
        x = part.norm(x)
    if stack == "encoder":
        return _loss(model.decode(batch.target_in, x, source_padding=batch.source_padding), batch)
    return _loss(F.linear(x, model.embedding.weight) if model.head is None else model.head(x), batch)


def _loss(logits: Tensor, batch: Batch) -> float:
    # In float64: of a thousand layers, one changes the loss in its fifth digit.
    return F.cross_entropy(logits.double().flatten(0, 1), batch.target_out.flatten(), ignore_index=PAD).item()


def effective_depth(loss_changes: Sequence[float], num_layers: int) -> float:
    """How many layers would carry what these carry, if all that matter did so equally.

    ``(sum d)^2 / sum d^2`` over the layers whose skip raises the loss by d, times ``num_layers`` over the number of
    samples: L for a stack in which all layers matter alike, 1 for one in which a single layer does all, 0 where no
    skip raises the loss. From samples it is an estimate, and a stack whose few strong layers fall between the
    samples looks deeper than it is.

    Examples:
        >>> effective_depth([0.1] * 8, 8), effective_depth([0.8, 0.0, 0.0, 0.0], 4), effective_depth([0.1, 0.1], 30)
        (8.0, 1.0, 30.0)
    """
    helps = np.maximum(np.asarray(loss_changes, dtype=np.float64), 0.0)
    if not np.isfinite(helps).all() or not helps.any():
        return 0.0
    return round(float(helps.sum() ** 2 / (helps**2).sum()) * num_layers / len(helps), 6)
