"""The tables of ``kilolayer lab update``, and what they come to in one sentence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from rich.console import Console

from kilolayer.lab.update_experiment import Curve
from kilolayer.report import format_number, format_range, render_table

PARTS = (("updates", "all parameters"), ("matrix_updates", "matrices alone"))


def print_curves(curves: Sequence[Curve], console: Console, *, last_step: int) -> None:
    """Print every table."""
    for step in dict.fromkeys((1, last_step)):
        console.print(update_table(curves, step))
        console.print()
    console.print(depth_table(curves))
    console.print()
    console.print(gradient_table(curves, last_step))
    console.print()


def update_table(curves: Sequence[Curve], step: int) -> Any:
    """Model update by depth, with its growth; theory's sum below."""
    depths = sorted({depth for curve in curves for depth in curve.num_branches})
    rows: list[list[Any]] = []
    for curve in curves:
        name = label(curve, curves)
        for key, part in PARTS:
            values = dict(zip(curve.num_branches, curve.updates(key, step), strict=True))
            cells = [spread(values.get(depth, [])) for depth in depths]
            rows.append([name if key == "updates" else "", part, *cells, exponent(curve.growth(key, step))])
        sums = dict(zip(curve.num_branches, curve.sums or [], strict=False))
        cells = [format_number(sums.get(depth)) for depth in depths]
        rows.append(["", "theory's sum", *cells, exponent(curve.sum_growth("matrix_updates", step))])
    return render_table(
        ["scheme", "moved", *(str(depth) for depth in depths), "growth"],
        rows,
        title=f"Model update after {steps(step)}, by branches",
        caption="|F after - F before| / |F before| on a fixed batch; growth: exponent of depth while updates are small",
    )


def depth_table(curves: Sequence[Curve]) -> Any:
    """Step 0 at the largest depth of each network and scheme."""
    firsts = {(curve.setting.network, curve.setting.scheme): curve for curve in reversed(curves)}
    rows = []
    for curve in reversed(list(firsts.values())):
        starts = [result["start"] for result in curve.results[-1]]
        rows.append(
            [
                label(curve, curves, with_optimizer=False),
                str(curve.num_branches[-1]),
                *(spread([start["branch_to_skip"][end] for start in starts]) for end in (0, -1)),
                *(spread([start["norm_gain"][end] for start in starts if start["norm_gain"]]) for end in (0, -1)),
                spread([start["norm_gain_expected"][-1] for start in starts if start["norm_gain"]]),
                spread([start["neighbor_cosine"][-1] for start in starts]),
                spread([start["input_cosine"][-1] for start in starts]),
                spread([start["token_cosine"][-1] for start in starts]),
                spread([max(start["sum_max_abs"]) for start in starts]),
            ]
        )
    header = ["scheme", "branches", "branch/skip first", "last", "norm gain first", "last", "by formula"]
    return render_table(
        [*header, "cos to neighbor", "cos to input", "cos of tokens", "largest"],
        rows,
        title="Step 0, first and last branch",
    )


def gradient_table(curves: Sequence[Curve], last_step: int) -> Any:
    """Gradient of the stream at the bottom over that at the top, at step 0 and behind the last step."""
    depths = sorted({depth for curve in curves for depth in curve.num_branches})
    rows = []
    for curve in curves:
        at = dict(zip(curve.num_branches, curve.results, strict=True))
        for when, text in (("start", "step 0"), ("end", f"after {last_step}")):
            cells = [spread(gradient_ratios(at.get(depth, ()), when)) for depth in depths]
            rows.append([label(curve, curves) if when == "start" else "", text, *cells])
    return render_table(
        ["scheme", "when", *(str(depth) for depth in depths)],
        rows,
        title="Gradient of the stream, bottom over top, by branches",
    )


def gradient_ratios(results: Iterable[dict[str, Any]], when: str) -> list[float]:
    """RMS of the gradient that arrives at the input of the stack over that at its output, seed by seed."""
    found = [result[when]["stream_grad_rms"] for result in results if result[when] is not None]
    return [grads[0] / grads[-1] for grads in found if grads[-1] > 0]


def sentence(curves: Sequence[Curve]) -> str:
    """How much farther one step moves the deepest stack than the shallowest, for the first network and optimizer."""
    first = curves[0].setting
    alike = [curve for curve in curves if curve.setting._replace(scheme=first.scheme) == first]
    depths = sorted({depth for curve in alike for depth in curve.num_branches})
    parts = [text for curve in alike if curve.num_branches == tuple(depths) and (text := _stretch(curve))]
    if len(depths) < 2 or not parts:
        return "One depth alone says nothing about depth: name several with --branches."
    where = f"{first.network}, {first.optimizer} at {first.lr:g}"
    return f"The first step moves {depths[-1]} branches farther than {depths[0]} ({where}): {'; '.join(parts)}."


def _stretch(curve: Curve) -> str:
    """``"deepnorm 4.3x, its matrices 0.81x (theory 1.0x)"``; empty where nothing moved or nothing stayed finite."""
    ends = [curve.updates(key, 1) for key, _ in PARTS]
    if not all(at[0] and at[-1] and np.median(at[0]) > 0 for at in ends):
        return ""
    whole, matrices = (float(np.median(at[-1]) / np.median(at[0])) for at in ends)
    theory = f" (theory {times(curve.sums[-1] / curve.sums[0])})" if curve.sums else ""
    return f"{curve.setting.scheme} {times(whole)}, its matrices {times(matrices)}{theory}"


def label(curve: Curve, curves: Sequence[Curve], *, with_optimizer: bool = True) -> str:
    """The scheme, and what else tells a curve from the others."""
    setting = curve.setting
    words = [setting.scheme]
    if len({one.setting.network for one in curves}) > 1:
        words.insert(0, setting.network)
    if with_optimizer and len({(one.setting.optimizer, one.setting.lr) for one in curves}) > 1:
        words.append(setting.optimizer)
        same = {one.setting.lr for one in curves if one.setting.optimizer == setting.optimizer}
        words += [f"lr {setting.lr:g}"] if len(same) > 1 else []
    return " ".join(words)


def exponent(value: float | None) -> str:
    """A power of depth with two decimals."""
    return "-" if value is None else f"{value + 0.0:.2f}".replace("-0.00", "0.00")


def times(ratio: float) -> str:
    """A ratio as ``12x``."""
    return f"{format_number(float(ratio), digits=2)}x"


def steps(count: int) -> str:
    """``1 step``, ``8 steps``."""
    return f"{count} step{'' if count == 1 else 's'}"


def spread(values: Sequence[float]) -> str:
    """One value, or the range over seeds; ``-`` where there is none."""
    if not values:
        return "-"
    return format_number(values[0]) if len(values) == 1 else format_range(min(values), max(values))
