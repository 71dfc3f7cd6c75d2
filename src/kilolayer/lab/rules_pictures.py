"""The picture of ``kilolayer lab rules``: loss by step, gradient by depth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from kilolayer.lab.depth_pictures import draw_curves, draw_panels, scale_height_by_log
from kilolayer.lab.rules_results import RulesResult, Standing
from kilolayer.lab.training import LAST_STEPS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SMOOTH_STEPS = 10
"""The loss is drawn as the mean over this many steps: a single batch is noise."""


def draw_rules(standings: Sequence[Standing], *, title: str) -> bytes:
    """Three panels: loss by step, and gradient by layer at step 0 and at the end, as PNG."""
    panels = [
        lambda axes: _losses(axes, standings),
        lambda axes: _gradients(axes, standings, lambda one: one.grads_at_start, "step 0"),
        lambda axes: _gradients(axes, standings, lambda one: one.grads, f"mean of the last {LAST_STEPS} steps"),
    ]
    return draw_panels([panels], title=title)


def smoothed(losses: Sequence[float], num_steps: int) -> np.ndarray:
    """Means of the last :data:`SMOOTH_STEPS` losses at every step; NaN after the last step of a run that broke off.

    Examples:
        >>> smoothed([4.0, 2.0], 3).tolist()
        [4.0, 3.0, nan]
    """
    means = [np.mean(losses[max(0, end - SMOOTH_STEPS) : end]) for end in range(1, len(losses) + 1)]
    return np.array(means + [np.nan] * (num_steps - len(losses)), dtype=np.float64)


def _losses(axes: Axes, standings: Sequence[Standing]) -> None:
    run = standings[0].results[0].run
    steps = np.arange(1, run.num_steps + 1)
    for number, standing in enumerate(standings):
        curves = np.stack([smoothed(one.numbers["losses"], run.num_steps) for one in standing.results])
        draw_curves(axes, steps, curves, label=standing.scheme, number=number)
    floor = standings[0].results[0].numbers["frequency_loss"]
    axes.axhline(floor, color="gray", linewidth=0.8, label="character frequencies")
    axes.set(xlabel="step", ylabel=f"training loss, nats (mean of {SMOOTH_STEPS} steps)")
    axes.set_ylim(top=floor + 1.0)


def _gradients(axes: Axes, standings: Sequence[Standing], read: Callable[[RulesResult], np.ndarray], when: str) -> None:
    layers = np.arange(1, standings[0].results[0].run.decoder_layers + 1)
    for number, standing in enumerate(standings):
        curves = np.stack([read(one) for one in standing.results])
        # The logarithm of an exact zero has no place in the picture.
        draw_curves(axes, layers, np.where(curves > 0, curves, np.nan), label=standing.scheme, number=number)
    scale_height_by_log(axes)
    axes.set(xlabel="layer (1 = bottom)", ylabel=f"gradient norm, {when}")
