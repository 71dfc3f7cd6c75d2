"""``kilolayer predict``: what theory expects of stream and gradient under a scheme, and what one draw measures."""

from __future__ import annotations

import json as json_format
import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from kilolayer.lab.scheme_stream import Measured
    from kilolayer.theory import NetworkSpec, SchemePrediction, SizeBand

SHOWN_BRANCHES = 8
"""Rows of the table below the first: few enough for a screen. --json has every branch."""
LARGEST_FLOAT16 = 65504.0
MOST_BRANCHES = 100_000
"""Half a minute of computing; deeper, nothing new happens."""
SLOW_BRANCHES = 10_000
LEAST_WIDTH = 4


def predict(
    *,
    scheme: Annotated[str, typer.Option(help="Residual scheme.")] = "deepnorm",
    rule: Annotated[str | None, typer.Option(help="Rule of a scheme that has several, as deepnorm has.")] = None,
    blocks: Annotated[int | None, typer.Option(help="Depth in blocks of one branch, as in a deep MLP.")] = None,
    layers: Annotated[int | None, typer.Option(help="Or in layers of two branches, as in a Transformer.")] = None,
    width: Annotated[int, typer.Option(help="Size of the stream and of every hidden layer.")] = 256,
    activation: Annotated[str, typer.Option(help="relu, gelu, silu, tanh, sigmoid or identity.")] = "relu",
    norm: Annotated[str, typer.Option(help="layer, rms or batch, where the scheme has norms.")] = "layer",
    init: Annotated[
        str, typer.Option(help="kaiming, lecun, xavier, orthogonal, fixed-0.02 or torch-default.")
    ] = "kaiming",
    batch_size: Annotated[int, typer.Option(help="Samples: bands narrow with it.")] = 64,
    measure: Annotated[bool, typer.Option("--measure", help="Build the network and measure it too.")] = False,
    seed: Annotated[int, typer.Option(help="Of the measured draw.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Predict the size of stream and gradient at every branch of a deep MLP at initialization.

    Sizes are RMS values; gradients are relative to the last branch. Ranges hold 95 % of draws of the weights.
    """
    from kilolayer.schemes.registry import get_scheme
    from kilolayer.theory import NetworkSpec, predict_scheme

    if (blocks is None) == (layers is None):
        raise ValueError("give the depth once: --blocks N for one branch each, or --layers N for two branches each")
    network = NetworkSpec(
        scheme=get_scheme(scheme, rule=rule),
        num_layers=blocks or layers or 0,
        width=width,
        branches_per_layer=1 if blocks is not None else 2,
        activation=activation,
        norm=norm,
        init=init,
    )
    check_sizes(network, batch_size=batch_size, measure=measure)
    prediction = predict_scheme(network, batch_size=batch_size)
    measured = _measure(network, batch_size=batch_size, seed=seed) if measure else None
    if json:
        typer.echo(json_format.dumps(to_json(prediction, measured, batch_size=batch_size, seed=seed)))
        return
    from rich.console import Console

    console = Console(highlight=False)
    console.print(build_table(prediction, measured))
    for line in summarize(prediction, measured):
        console.print(line, soft_wrap=True)


def check_sizes(network: NetworkSpec, *, batch_size: int, measure: bool) -> None:
    """Refuse what would take too long or not fit into memory; say so when it will take seconds.

    Raises:
        ValueError: a width or batch too small for theory, too many branches, or more memory than there is.
    """
    from kilolayer.cli.limits import check_memory

    total, width = network.depth.total_branches, network.width
    mixes_samples = _mixes_samples(network)
    if width < LEAST_WIDTH:
        raise ValueError(f"width must be >= {LEAST_WIDTH}, got {width}: predictions are expansions in 1/width")
    # With two samples a batch norm leaves nothing but their signs.
    if batch_size < (least := 3 if mixes_samples else 2):
        raise ValueError(f"batch_size must be >= {least}, got {batch_size}")
    if total > MOST_BRANCHES:
        raise ValueError(f"at most {MOST_BRANCHES:,} branches are predicted, got {total:,}; lower the depth")
    work = float(total)
    if mixes_samples:
        # Five single-precision matrices per branch over all pairs of samples.
        pairs = batch_size * (batch_size + 1) / 2
        remedy = "lower --batch-size or the depth"
        check_memory(20 * pairs * total, what="a prediction with batch norm", remedy=remedy)
        work *= 1 + pairs / 1000
    if measure:
        # Float64: two matrices per branch, and some six activations that wait for the backward pass.
        needed = 8.0 * total * (2 * width**2 + 6 * batch_size * width)
        check_memory(needed, what="the network to measure", remedy="lower --width, --batch-size or the depth")
    if work > SLOW_BRANCHES:
        typer.echo(f"predicting {total:,} branches, which takes a while", err=True)


def _mixes_samples(network: NetworkSpec) -> bool:
    """Whether there is a batch norm, so that every pair of samples has to be followed."""
    scheme = network.resolved_scheme
    return network.norm == "batch" and (scheme.needs_profile or scheme.at(network.depth, 0).norm_placement != "none")


def _measure(network: NetworkSpec, *, batch_size: int, seed: int) -> Measured:
    from kilolayer.lab.scheme_stream import measure_scheme

    return measure_scheme(network, batch_size=batch_size, seed=seed)


def to_json(prediction: SchemePrediction, measured: Measured | None, *, batch_size: int, seed: int) -> dict[str, Any]:
    """``{"format": 1, "network", "predicted", "measured"}``; lists start at what enters the stack."""
    network = prediction.network
    return {
        "format": 1,
        "network": {
            "scheme": network.resolved_scheme.name,
            "rule": network.resolved_scheme.rule,
            "layers": network.num_layers,
            "branches": network.depth.total_branches,
            "width": network.width,
            "activation": network.activation,
            "norm": network.norm,
            "init": network.init,
            "batch_size": batch_size,
        },
        "predicted": _predicted_json(prediction),
        "measured": None if measured is None else _measured_json(measured, seed),
    }


def _predicted_json(prediction: SchemePrediction) -> dict[str, Any]:
    return {
        "stream_rms": _numbers(prediction.stream.median),
        "stream_band": _pairs(prediction.stream),
        "gradient_rms": _numbers(prediction.gradient.median),
        "gradient_band": _pairs(prediction.gradient),
        "forward_rates": _numbers(prediction.stream.rates),
        "backward_rates": _numbers(1 / prediction.gradient.rates),
        "norm_factor": _numbers(prediction.norm_factor),
        "identity_fraction": _numbers(prediction.identity_fraction),
        "forward_rate": prediction.forward_rate,
        "backward_rate": prediction.backward_rate,
        "trainable_depth": _number(prediction.trainable_depth),
        "largest_activation": _number(prediction.largest),
    }


def _measured_json(measured: Measured, seed: int) -> dict[str, Any]:
    return {
        "seed": seed,
        "stream_rms": _numbers(measured.stream),
        "gradient_rms": _numbers(measured.gradient),
        "largest_activation": _number(measured.largest),
    }


def build_table(prediction: SchemePrediction, measured: Measured | None) -> Table:
    """A few branches, evenly spaced: predicted RMS with its range, measured beside it."""
    from rich import box
    from rich.table import Table

    network, total = prediction.network, prediction.network.depth.total_branches
    scheme = network.resolved_scheme
    name = scheme.name if scheme.rule is None else f"{scheme.name} ({scheme.rule})"
    title = (
        f"{name}: {total} branches, width {network.width}, {network.activation}, {network.norm} norm, "
        f"{network.init} init"
    )
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", collapse_padding=True)
    table.add_column("branch", justify="right")
    for heading in ("stream", "gradient"):
        table.add_column(f"{heading} RMS", justify="right")
        table.add_column("95 % of draws", justify="right")
        if measured is not None:
            table.add_column("measured", justify="right")
    rows = min(SHOWN_BRANCHES, total)
    for branch in sorted({round(total * step / rows) for step in range(rows + 1)}):
        cells = _cells(prediction.stream, branch, None if measured is None else measured.stream[branch])
        cells += _cells(prediction.gradient, branch, None if measured is None else measured.gradient[branch])
        table.add_row("input" if branch == 0 else str(branch), *cells)
    return table


def summarize(prediction: SchemePrediction, measured: Measured | None) -> list[str]:
    """Rates, trainable depth, largest activation and the norms' Jacobian, in words."""
    depth = prediction.trainable_depth
    reach = "without limit" if math.isinf(depth) else f"about {depth:.3g} branches"
    largest = f"Largest activation expected in the stream: {_short(prediction.largest)}"
    if measured is not None:
        largest += f", measured {_short(measured.largest)}"
    if prediction.largest > LARGEST_FLOAT16:
        largest += "; float16 ends at 65,504"
    lines = [
        f"Per branch, stream times {prediction.forward_rate:.4g}, gradient towards the input times "
        f"{prediction.backward_rate:.4g}.",
        f"Trainable depth at this rate (6 correlation lengths): {reach}.",
        f"{largest}.",
    ]
    first, last = (float(prediction.norm_factor[index]) for index in (0, -1))
    if not math.isnan(first):
        lines.append(f"The norm multiplies gradients by {first:.4g} in the first branch, {last:.4g} in the last.")
    return lines


def _cells(band: SizeBand, branch: int, measured: float | None) -> list[str]:
    low, high = band.low[branch], band.high[branch]
    cells = [_short(band.median[branch]), "" if low == high else f"{_short(low)} to {_short(high)}"]
    return cells if measured is None else [*cells, _short(measured)]


def _short(value: float) -> str:
    return f"{value:.3g}"


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _numbers(values: Any) -> list[float | None]:
    return [_number(value) for value in values]


def _pairs(band: SizeBand) -> list[list[float | None]]:
    return [[_number(low), _number(high)] for low, high in zip(band.low, band.high, strict=True)]
