"""``kilolayer init-plan``: what every parameter of a Transformer starts from, and why."""

from __future__ import annotations

import dataclasses
import json as json_format
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kilolayer.schemes.registry import get_scheme

if TYPE_CHECKING:
    from torch import nn

    from kilolayer.init import InitPlan, InitRow
    from kilolayer.schemes.scheme import Scheme

VOCABULARY = 32_000
"""No row of the plan depends on it: the head is tied to the embedding, whose std is 1/sqrt(width)."""


def init_plan(
    *,
    encoder_layers: Annotated[int, typer.Option(help="Layers of the encoder, or of the only stack.")] = 0,
    decoder_layers: Annotated[int, typer.Option(help="Layers of the decoder, or of the only stack.")] = 0,
    scheme: Annotated[str, typer.Option(help="Residual scheme.")] = "deepnorm",
    rule: Annotated[str | None, typer.Option(help="Rule of a scheme that has several, as deepnorm has.")] = None,
    width: Annotated[int, typer.Option(help="Size of the stream; the feed-forward is four times wider.")] = 512,
    base: Annotated[str, typer.Option(help="xavier, kaiming, lecun, fixed-0.02 or orthogonal.")] = "xavier",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """List parameter, fill, std and reason for a Transformer: encoder, language model, or encoder-decoder.

    Layers whose rows agree are printed once; --json lists every parameter.
    """
    from kilolayer.init import plan_init

    chosen = get_scheme(scheme, rule=rule)
    model = build_on_meta(encoder_layers, decoder_layers, scheme=chosen, width=width)
    plan = plan_init(model, chosen, base=base)
    typer.echo(json_format.dumps(to_json(plan)) if json else render_folded(plan))


def build_on_meta(encoder_layers: int, decoder_layers: int, *, scheme: Scheme, width: int) -> nn.Module:
    """The smallest model that has these stacks, without memory for its parameters.

    Raises:
        ValueError: no layer at all, a negative number, a width below 1.
    """
    import torch

    from kilolayer import nn as kilolayer_nn
    from kilolayer.schemes import Depth

    Depth(encoder_layers=encoder_layers, decoder_layers=decoder_layers)
    with torch.device("meta"):
        if not decoder_layers:
            layer = kilolayer_nn.TransformerEncoderLayer(width, 1, 4 * width, scheme=scheme)
            return kilolayer_nn.TransformerEncoder(layer, encoder_layers)
        # Rotary positions and one head: the plan has no rows for positions, and any even width has both.
        config = kilolayer_nn.TransformerConfig(
            vocab_size=VOCABULARY,
            width=width,
            num_heads=1,
            encoder_layers=encoder_layers,
            decoder_layers=decoder_layers,
            scheme=scheme,
            positions="rotary",
            tied_head=scheme.head_gain != 0,
        )
        return kilolayer_nn.Seq2Seq(config) if encoder_layers else kilolayer_nn.CausalLM(config)


def to_json(plan: InitPlan) -> dict[str, Any]:
    """``{"format": 1, "rows": [{"parameter", "part", "fill", "std", "value", "reason"}]}``."""
    return {"format": 1, "rows": [dataclasses.asdict(row) for row in plan.rows]}


def render_folded(plan: InitPlan) -> str:
    """The plan as text; neighbouring layers whose rows agree share one block, as ``layers.0..11``."""
    from kilolayer.init import InitPlan

    folded: list[InitRow] = []
    layers: dict[str, list[tuple[int, list[InitRow]]]] = {}
    for row in plan.rows:
        stack, found, rest = row.parameter.partition("layers.")
        if not found:
            folded += _fold_stacks(layers)
            folded.append(row)
            continue
        index, _, name = rest.partition(".")
        rows = layers.setdefault(stack, [])
        if not rows or rows[-1][0] != int(index):
            rows.append((int(index), []))
        rows[-1][1].append(dataclasses.replace(row, parameter=name))
    folded += _fold_stacks(layers)
    return InitPlan(tuple(folded)).render()


def _fold_stacks(layers: dict[str, list[tuple[int, list[InitRow]]]]) -> list[InitRow]:
    """The rows of all stacks gathered so far, which it empties."""
    folded: list[InitRow] = []
    for stack, entries in layers.items():
        first = 0
        for position in range(1, len(entries) + 1):
            if position < len(entries) and entries[position][1] == entries[first][1]:
                continue
            low, high = entries[first][0], entries[position - 1][0]
            span = str(low) if low == high else f"{low}..{high}"
            folded += [
                dataclasses.replace(row, parameter=f"{stack}layers.{span}.{row.parameter}") for row in entries[first][1]
            ]
            first = position
    layers.clear()
    return folded
