"""``kilolayer coefficients``: DeepNorm's coefficients of a network under every rule, side by side."""

from __future__ import annotations

import json as json_format
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kilolayer.schemes.coefficients import Coefficients, StackCoefficients
from kilolayer.schemes.coefficients import coefficients as compute_coefficients
from kilolayer.schemes.registry import RULE_NAMES, get_scheme

if TYPE_CHECKING:
    from rich.table import Table

BATCH_SIZE_NEVER_ENTERS = (
    "--batch-size is not an option: skip scale and init gain follow from the number of layers alone, batch size never "
    "enters; pass --encoder-layers and --decoder-layers"
)


def coefficients(
    *,
    encoder_layers: Annotated[int, typer.Option(help="Layers of the encoder, or of the only stack.")] = 0,
    decoder_layers: Annotated[int, typer.Option(help="Layers of the decoder, or of the only stack.")] = 0,
    rule: Annotated[str | None, typer.Option(help=f"One rule only: {', '.join(RULE_NAMES)}.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    batch_size: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """DeepNorm's skip scale (alpha) and init gain (beta) from the number of layers, under every rule."""
    if batch_size is not None:
        raise ValueError(BATCH_SIZE_NEVER_ENTERS)
    names = RULE_NAMES if rule is None else (rule,)
    results = [compute_coefficients(encoder_layers, decoder_layers, rule=name) for name in names]
    if json:
        typer.echo(json_format.dumps(to_json(results)))
        return
    from rich.console import Console

    console = Console(highlight=False)
    console.print(build_table(results))
    for line in describe_rules(results):
        console.print(line, soft_wrap=True)


def to_json(results: list[Coefficients]) -> dict[str, Any]:
    """``{"format": 1, "rules": {name: {"encoder", "decoder", "update_sum"}}}``."""
    return {"format": 1, "rules": {one.rule: one.to_dict() for one in results}}


def build_table(results: list[Coefficients]) -> Table:
    """One row per rule: alpha, beta and update sum of every stack there is."""
    from rich import box
    from rich.table import Table

    table = Table(title=_title(results[0]), box=box.SIMPLE_HEAD, title_justify="left", collapse_padding=True)
    table.add_column("rule", no_wrap=True)
    present = [name for name in ("encoder", "decoder") if getattr(results[0], name) is not None]
    for heading in [f"{name} {what}" for name in present for what in ("alpha", "beta")]:
        table.add_column(heading, justify="right")
    sums = [*present, "coupled"] if len(present) == 2 else present
    for name in sums:
        table.add_column(f"update sum {name}", justify="right")
    for one in results:
        numbers = [number for name in present for number in _alpha_beta(getattr(one, name))]
        table.add_row(one.rule, *numbers, *(_sum(getattr(one.update_sum, name)) for name in sums))
    return table


def describe_rules(results: list[Coefficients]) -> list[str]:
    """What the sums mean, then formula and origin of each rule shown."""
    lines = [
        "Update sum: (beta/alpha)^2 summed over branches. The paper's condition: 0.5 for a single stack, 1 coupled.",
        "N encoder layers, M decoder layers; L layers and B branches of the stack at hand.",
    ]
    for one in results:
        scheme = get_scheme("deepnorm", rule=one.rule)
        coefficients_only = scheme.formula.removeprefix("x' = LN(alpha x + f(x)), ")
        lines.append(f"{one.rule}: {coefficients_only}. {scheme.reference}")
    return lines


def _title(result: Coefficients) -> str:
    parts = [
        f"{name}: {stack.num_layers} layers, {stack.num_branches} branches"
        for name, stack in (("encoder", result.encoder), ("decoder", result.decoder))
        if stack is not None
    ]
    return "; ".join(parts)


def _alpha_beta(stack: StackCoefficients) -> tuple[str, str]:
    return f"{stack.skip_scale:.4f}", f"{stack.init_gain:.4f}"


def _sum(value: float) -> str:
    return f"{value:.4f}" if value >= 1e-3 else f"{value:.1e}"
