"""The picture of ``kilolayer lab lr-tolerance``: loss by learning rate, and where stability ends by depth."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from kilolayer.lab.depth_pictures import Panel, draw_curves, draw_panels, style_of
from kilolayer.lab.lr_tolerance_results import Groups, SearchResult, Setting, group, median_loss, schemes_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ABOVE_FLOOR = 0.6
"""Nats above the character frequencies where the picture ends: what lies further up has failed."""
MARGIN = 0.05


def draw_tolerance(results: Sequence[SearchResult]) -> bytes:
    """A row of panels per warm-up: loss by rate at each depth, then the largest stable rate by depth, as PNG."""
    groups = group(results)
    schemes = schemes_of(groups)
    rows: list[list[Panel]] = []
    for warmup in sorted({setting.warmup_steps for setting in groups}):
        settings = [setting for setting in groups if setting.warmup_steps == warmup]
        losses: list[Panel] = [partial(_losses, groups=groups, setting=one, schemes=schemes) for one in settings]
        rows.append([*losses, partial(_edges, groups=groups, settings=settings, schemes=schemes)])
    return draw_panels(rows, title="Largest stable learning rate by scheme and depth")


def _losses(axes: Axes, *, groups: Groups, setting: Setting, schemes: list[str]) -> None:
    for number, scheme in enumerate(schemes):
        results = groups[setting].get(scheme, [])
        if not results:
            continue
        lrs = results[0].search.lrs
        curves = np.array([[one.at(lr)["held_out_loss"] for lr in lrs] for one in results], dtype=np.float64)
        draw_curves(axes, np.array(lrs), curves, label=scheme, number=number)
    floor = next(iter(groups[setting].values()))[0].tries[0]["frequency_loss"]
    axes.axhline(floor, color="gray", linewidth=0.8, label="character frequencies")
    axes.set_xscale("log")
    lowest = min(median_loss(results, lr) for results in groups[setting].values() for lr in results[0].search.lrs)
    axes.set_ylim(min(lowest, floor) - MARGIN, floor + ABOVE_FLOOR)
    axes.set(xlabel="learning rate", ylabel="held-out loss, nats", title=setting.text)


def _edges(axes: Axes, *, groups: Groups, settings: list[Setting], schemes: list[str]) -> None:
    for number, scheme in enumerate(schemes):
        points = [
            (setting.layers, float(np.median([one.largest_lr for one in groups[setting][scheme]])))
            for setting in settings
            if scheme in groups[setting]
        ]
        trained = [(layers, rate) for layers, rate in points if rate > 0]
        if trained:
            axes.plot(*zip(*trained, strict=True), marker="o", markersize=4, **style_of(number))
    axes.set(xscale="log", yscale="log", xlabel="layers", ylabel="largest stable learning rate", title="where it ends")
    axes.set_xticks([setting.layers for setting in settings], [str(setting.layers) for setting in settings])
    axes.minorticks_off()
