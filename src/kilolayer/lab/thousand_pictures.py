"""The picture of ``kilolayer lab thousand``: loss by step, gradient by branch, loss without a layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from kilolayer.lab.depth_pictures import draw_curves, draw_panels, scale_height_by_log
from kilolayer.lab.effective_depth import STACKS
from kilolayer.lab.rules_pictures import SMOOTH_STEPS, smoothed
from kilolayer.lab.thousand_results import ThousandResult
from kilolayer.lab.thousand_tables import names_of
from kilolayer.lab.training import LAST_STEPS

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_thousand(results: Sequence[ThousandResult], *, title: str) -> bytes:
    """Losses; gradients at step 0 and at the end; and, of each stack, the loss without a layer, as PNG."""
    rows = [
        [
            lambda axes: _losses(axes, results),
            lambda axes: _gradients(axes, results, at_start=True),
            lambda axes: _gradients(axes, results, at_start=False),
        ]
    ]
    measured = [(number, result) for number, result in enumerate(results) if "layer_skips" in result.numbers]
    if measured:
        rows.append([lambda axes, stack=stack: _skips(axes, measured, stack) for stack in STACKS])  # type: ignore[misc]
    return draw_panels(rows, title=title)


def _losses(axes: Axes, results: Sequence[ThousandResult]) -> None:
    for number, result in enumerate(results):
        curve = smoothed(result.numbers["losses"], result.run.num_steps)
        steps = np.arange(1, len(curve) + 1)
        draw_curves(axes, steps, curve[None], label=names_of(results)[number], number=number)
    bars = [result.numbers["unigram_entropy"] for result in results if "unigram_entropy" in result.numbers]
    if bars:
        axes.axhline(bars[0], color="gray", linewidth=0.8, label="token frequencies alone")
    axes.set(xlabel="step", ylabel=f"training loss, nats per token (mean of {SMOOTH_STEPS} steps)")


def _gradients(axes: Axes, results: Sequence[ThousandResult], *, at_start: bool) -> None:
    for number, result in enumerate(results):
        grads = result.grads_at_start if at_start else result.grads
        for stack, shift in zip(STACKS, (0.0, 1.0), strict=True):
            # Each stack fills one unit, whatever its depth: the decoder stands to the right of the encoder.
            places = shift + np.linspace(0, 1, len(grads[stack]))
            # The logarithm of an exact zero has no place in the picture.
            curve = np.where(grads[stack] > 0, grads[stack], np.nan)
            draw_curves(axes, places, curve[None], label=names_of(results)[number], number=number)
    scale_height_by_log(axes)
    axes.axvline(1.0, color="gray", linewidth=0.8)
    axes.set_xticks([0.5, 1.5], labels=["encoder, bottom to top", "decoder, bottom to top"])
    axes.set(ylabel=f"gradient norm by branch, {'step 0' if at_start else f'mean of the last {LAST_STEPS} steps'}")


def _skips(axes: Axes, measured: Sequence[tuple[int, ThousandResult]], stack: str) -> None:
    for number, result in measured:
        skips = result.numbers["layer_skips"][stack]
        changes = np.array(skips["loss_change"], dtype=np.float64)
        draw_curves(axes, np.array(skips["layer"]) + 1, changes[None], label=str(number), number=number)
    axes.axhline(0.0, color="gray", linewidth=0.8)
    axes.set_yscale("symlog", linthresh=1e-3)
    axes.set(xlabel=f"{stack} layer that is skipped (1 = bottom)", ylabel="rise of the held-out loss, nats per token")
