"""Loss curves on one shared axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kilolayer.recording.spikes import Spike
from kilolayer.report.grid import run_series
from kilolayer.report.lines import rounded
from kilolayer.report.panel import step_bounds
from kilolayer.report.scale import scale_label, step_ticks, ticks
from kilolayer.report.text import inert
from kilolayer.report.thin import thin_curve
from kilolayer.report.view import RunView

MAX_DECADES = 3.0
LOG_FROM_DECADES = 1.5
MAX_MARKS = 12
"""More marks along the upper edge would touch each other."""

MAX_SPIKES = 20
"""Spikes marked on a curve, the largest ones; all are counted."""


class LossAxis:
    """The loss axis that all runs share, so that their curves can be compared.

    Logarithmic where the losses span more than :data:`LOG_FROM_DECADES` decades; a loss that explodes reaches at
    most :data:`MAX_DECADES` above the lowest. Beyond that its curve leaves the picture, and marks at the upper edge
    say where (:meth:`above`).
    """

    def __init__(self, curves: Sequence[np.ndarray]):
        finite = [losses[np.isfinite(losses)] for losses in curves]
        values = np.concatenate([np.zeros(0), *finite]).astype(np.float64)
        low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
        self.log = low > 0 and np.log10(high / low) > LOG_FROM_DECADES
        if self.log:
            low, high = np.log10(low), min(np.log10(high), np.log10(low) + MAX_DECADES)
        elif low >= 0:
            low = 0.0
        high = high if high > low else low + 1.0
        self.low, self.high = float(low - 0.04 * (high - low)), float(high + 0.06 * (high - low))

    @classmethod
    def of_runs(cls, runs: Sequence[RunView]) -> LossAxis:
        """The axis for the recorded losses of these runs."""
        return cls([run_series(run.recording, "loss")[1] for run in runs])

    def place(self, losses: np.ndarray) -> np.ndarray:
        """Losses on the axis (log10 or as they are)."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.log10(losses.astype(np.float64)) if self.log else losses.astype(np.float64)

    def above(self, losses: np.ndarray) -> np.ndarray:
        """Indices of at most :data:`MAX_MARKS` finite losses beyond the axis, with the first and the last of them."""
        found = np.flatnonzero(np.isfinite(losses) & (self.place(losses) > self.high))
        return found[np.unique(np.linspace(0, len(found) - 1, min(len(found), MAX_MARKS)).round().astype(int))]

    def ticks(self) -> tuple[list[float], list[str]]:
        """Positions and texts of the axis's ticks."""
        places = ticks(self.low, self.high, log=self.log)
        return places, [scale_label(place, log=self.log) for place in places]


def loss_panel(run: RunView, axis: LossAxis, *, nonfinite_step: int | None, limit: int) -> dict[str, Any] | None:
    """The loss curve of a run as data for ``report.js``; ``None`` where no loss was recorded."""
    steps, losses = run_series(run.recording, "loss")
    if not len(steps):
        return None
    kept = thin_curve(losses.astype(np.float64), limit)
    above = axis.above(losses)
    return {
        "x": steps[kept].tolist(),
        "y": rounded(axis.place(losses[kept])),
        "above": {"x": steps[above].tolist(), "y": rounded(axis.place(losses[above]))},
        "spikes": _spike_marks(run, dict(zip(steps.tolist(), axis.place(losses).tolist(), strict=True))),
        "x_ticks": step_ticks(*step_bounds(steps)[[0, -1]], count=6),
        "log": axis.log,
        "y_range": [axis.low, axis.high],
        "y_ticks": list(axis.ticks()),
        "nonfinite_step": nonfinite_step,
    }


def spike_size(spike: Spike) -> float:
    """How far a spike's gradient norm lies above its window, in standard deviations."""
    return (spike.grad_norm - spike.mean) / max(spike.sd, np.finfo(float).tiny)


def _spike_marks(run: RunView, heights: dict[int, float]) -> dict[str, list[Any]]:
    """Step, place on the curve and text of the largest spikes at whose step there is a loss to mark."""
    marked = [spike for spike in run.spikes if np.isfinite(heights.get(spike.step, np.nan))]
    kept = sorted(sorted(marked, key=spike_size)[-MAX_SPIKES:], key=lambda spike: spike.step)
    return {
        "x": [spike.step for spike in kept],
        "y": rounded(np.array([heights[spike.step] for spike in kept])),
        "text": [inert(str(spike), limit=300) for spike in kept],
    }
