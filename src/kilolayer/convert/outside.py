"""Embeddings and head of a model that nobody here wrote, under the schemes that scale them: Fixup and T-Fixup."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from torch import nn

from kilolayer.convert.branches import Refusal
from kilolayer.init import InitRow
from kilolayer.schemes import Depth, Scheme


def scales_outside(scheme: Scheme, depth: Depth) -> bool:
    """Whether a scheme scales anything but the branches."""
    return scheme.head_gain != 1.0 or any(scheme.embedding_gain(depth, stack) != 1.0 for stack in depth.stacks)


def plan_outside(model: nn.Module, scheme: Scheme, *, depth: Depth, inside: Collection[str]) -> Iterator[InitRow]:
    """Rows for token embeddings and head, told by the methods that Hugging Face models have for them.

    Args:
        model: the model.
        scheme: whose gains they get.
        depth: of the model.
        inside: the parameters of branches.

    Raises:
        Refusal: a tied head that should start at zero, or a model that does not say what its matrices outside of the
            branches are.
    """
    if not scales_outside(scheme, depth):
        return
    source: Any = model
    if not hasattr(model, "get_input_embeddings"):
        _check_nothing_outside(model, scheme, inside)
        return
    embeddings, head = source.get_input_embeddings(), source.get_output_embeddings()
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    gain = min(scheme.embedding_gain(depth, stack) for stack in depth.stacks)
    if gain != 1.0 and isinstance(embeddings, nn.Embedding):
        std = gain * embeddings.embedding_dim**-0.5
        yield InitRow(names[id(embeddings.weight)], "normal", std, f"embedding, 1/sqrt(width) times {gain:.4g}")
    if scheme.head_gain != 1.0 and head is not None:
        if isinstance(embeddings, nn.Embedding) and head.weight is embeddings.weight:
            raise Refusal(
                f"{scheme.name!r} starts the head at zero, and that of this {type(model).__name__} is tied to its "
                "embeddings; build it with tie_word_embeddings=False"
            )
        for parameter in head.parameters(recurse=False):
            yield InitRow(names[id(parameter)], "zeros", 0.0, "the scheme starts the head at zero")


def _check_nothing_outside(model: nn.Module, scheme: Scheme, inside: Collection[str]) -> None:
    outside = [name for name, one in model.named_parameters() if one.dim() >= 2 and name not in inside]
    if outside:
        name = type(model).__name__
        raise Refusal(
            f"{scheme.name!r} scales embeddings or the head, and whether {outside[0]} of this {name} is one of them is "
            "not known; convert the stack of layers alone, or build the model with kilolayer.nn"
        )


def note_outside(scheme: Scheme, depth: Depth) -> Iterator[str]:
    """What a reader has to do where the model holds no embeddings or head."""
    if scheme.head_gain != 1.0:
        yield f"{scheme.name} starts the head at zero: a head of yours outside of this model should, too"
    gains = {scheme.embedding_gain(depth, stack) for stack in depth.stacks} - {1.0}
    if gains:
        told = " and ".join(f"{gain:.4g}" for gain in sorted(gains))
        yield (
            f"{scheme.name} draws embeddings with std 1/sqrt(width) times {told}: others than the model's token "
            "embeddings are yours to draw; a norm behind them undoes it"
        )
