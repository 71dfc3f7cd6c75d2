"""``kilolayer init-plan``: what every parameter of a Transformer starts from, and why."""

from __future__ import annotations

import json as json_format
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kilolayer.schemes.depth import Depth
from kilolayer.schemes.registry import get_scheme

if TYPE_CHECKING:
    from kilolayer.cli.init_plan_layers import DeepPlan

MOST_LAYERS = 100_000
MOST_WIDTH = 1_000_000
"""Beyond these a plan is no longer something to read."""


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
    chosen = get_scheme(scheme, rule=rule)
    depth = Depth(encoder_layers=encoder_layers, decoder_layers=decoder_layers)
    check_sizes(depth, width)
    from kilolayer.cli.init_plan_layers import plan_deep

    plan = plan_deep(chosen, depth, width=width, base=base)
    typer.echo(json_format.dumps(to_json(plan)) if json else plan.folded().render())


def check_sizes(depth: Depth, width: int) -> None:
    """Refuse what no Transformer has.

    Raises:
        ValueError: an odd width, or one below 1, or more layers or units than a plan is made for.
    """
    if not 1 <= width <= MOST_WIDTH:
        raise ValueError(f"width must be >= 1 and at most {MOST_WIDTH:,}, got {width}")
    if width % 2:
        raise ValueError(f"width must be even, got {width}: positions come in pairs, and heads share the width out")
    if (total := depth.encoder_layers + depth.decoder_layers) > MOST_LAYERS:
        raise ValueError(f"a plan has at most {MOST_LAYERS:,} layers, got {total:,}; lower the number of layers")


def to_json(plan: DeepPlan) -> dict[str, Any]:
    """``{"format": 1, "rows": [{"parameter", "part", "fill", "std", "value", "reason"}]}``."""
    return {"format": 1, "rows": [vars(row) | {"parameter": name} for name, row in plan.rows()]}
