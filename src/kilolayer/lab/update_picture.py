"""The picture of ``kilolayer lab update``: updates by depth, and what stands behind them along the stack."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kilolayer.lab.depth_pictures import has_height
from kilolayer.lab.update_experiment import LINEAR_BELOW, Curve
from kilolayer.lab.update_tables import label

MISSING_EXTRA = "the PNG picture needs matplotlib: pip install 'kilolayer[report]'"
PANEL = (4.4, 3.5)
DPI = 110
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
"""Okabe and Ito's, which color-blind readers can tell apart."""

CAPTION = (
    "Left: solid all parameters, dashed the branches' matrices alone, dotted theory's sum. "
    "Right: solid step 0, dashed behind the last step."
)

Draw = Callable[[Any, Curve, str], None]


def draw_png(curves: Sequence[Curve]) -> bytes:
    """A row of panels per network and optimizer: update by depth, then four curves along the deepest stack.

    Raises:
        ImportError: matplotlib (of the ``report`` extra) is not installed.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(MISSING_EXTRA) from error
    groups: dict[tuple[str, str, float], list[Curve]] = {}
    for curve in curves:
        groups.setdefault((curve.setting.network, curve.setting.optimizer, curve.setting.lr), []).append(curve)
    schemes = list(dict.fromkeys(curve.setting.scheme for curve in curves))
    buffer = io.BytesIO()
    with rc_context({"font.size": 8}):
        figure = Figure(figsize=(PANEL[0] * len(PANELS), PANEL[1] * len(groups) + 0.4), dpi=DPI, layout="constrained")
        axes = figure.subplots(len(groups), len(PANELS), squeeze=False)
        for row, ((network, optimizer, lr), members) in zip(axes, groups.items(), strict=True):
            for axis, (title, unit, draw) in zip(row, PANELS, strict=True):
                for curve in members:
                    draw(axis, curve, COLORS[schemes.index(curve.setting.scheme) % len(COLORS)])
                axis.set_title(f"{network}, {optimizer}, lr {lr:g}: {title}")
                axis.set_xlabel(unit)
                axis.grid(alpha=0.25)
            row[0].legend([_proxy(curve, schemes) for curve in members], [label(c, members) for c in members])
        figure.suptitle(CAPTION, fontsize=8)
        figure.savefig(buffer, format="png", metadata={"Software": "kilolayer"})
    return buffer.getvalue()


def _proxy(curve: Curve, schemes: list[str]) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], color=COLORS[schemes.index(curve.setting.scheme) % len(COLORS)])


def _update(axis: Any, curve: Curve, color: str) -> None:
    """Dots for seeds, a line for the median; dashed the matrices alone, dotted theory's sum through its first dot."""
    for key, style in (("updates", "-"), ("matrix_updates", "--")):
        values = curve.updates(key, 1)
        points = [(depth, value) for depth, at in zip(curve.num_branches, values, strict=True) for value in at]
        medians = [(depth, np.median(at)) for depth, at in zip(curve.num_branches, values, strict=True) if at]
        if medians:
            axis.plot(*zip(*medians, strict=True), style, color=color)
        if key == "updates" and points:
            axis.plot(*zip(*points, strict=True), ".", color=color)
        elif medians and curve.sums and medians[0][1] < LINEAR_BELOW:
            line = np.array(curve.sums) / curve.sums[0] * medians[0][1]
            axis.plot(curve.num_branches, line, ":", color=color)
    axis.set_xscale("log")
    if has_height(axis):
        axis.set_yscale("log")


def _along(key: str, scale: str) -> Draw:
    """A quantity along the deepest stack: step 0, and dashed behind the last step."""

    def draw(axis: Any, curve: Curve, color: str) -> None:
        result = curve.results[-1][0]
        for when, style in (("start", "-"), ("end", "--")):
            if result[when] is not None:
                values = np.array(result[when][key])
                if scale == "log":
                    values = np.where(values > 0, values, np.nan)  # a 0 has no place on it
                axis.plot(np.arange(1, len(values) + 1), values, style, color=color)
        if scale != "log" or has_height(axis):
            axis.set_yscale(scale)

    return draw


PANELS: tuple[tuple[str, str, Draw], ...] = (
    ("model update after 1 step", "branches", _update),
    ("branch / skip in the sum", "branch", _along("branch_to_skip", "log")),
    ("gradient of the stream", "branch", _along("stream_grad_rms", "log")),
    ("cosine to the stack's input", "branch", _along("input_cosine", "linear")),
    ("largest entry of the sum", "branch", _along("sum_max_abs", "log")),
)
