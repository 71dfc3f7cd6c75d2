"""The columns of the PNG picture: one run each, drawn into matplotlib axes."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from kilolayer.report.fonts import drawable
from kilolayer.report.grid import Grid, GridReader, first_nonfinite_step, run_series
from kilolayer.report.loss import LossAxis
from kilolayer.report.panel import step_bounds
from kilolayer.report.quantity import QUANTITIES
from kilolayer.report.scale import CURVE_COLORS, NONFINITE_COLOR, scale_label, shared_scale, ticks
from kilolayer.report.text import NOT_RECORDED, format_value
from kilolayer.report.thin import NONFINITE, ZERO, thin_curve, thin_grid
from kilolayer.report.view import RunView

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_ROWS, MAX_COLUMNS = 120, 240
"""About one cell per pixel: more would be drawn over each other."""

CROSSES = 8
"""Crosses on non-finite cells along each axis, at most."""


class Columns:
    """Reads all runs once, so that every column shares color scales and the loss axis."""

    def __init__(self, runs: Sequence[RunView]):
        self.runs = runs
        readers = [GridReader(run.recording) for run in runs]
        self.grids = [[reader.read(quantity) for reader in readers] for quantity in QUANTITIES]
        self.scales = [shared_scale([grid for grid in grids if grid is not None]) for grids in self.grids]
        self.loss_axis = LossAxis.of_runs(runs)

    def draw(self, axes: Sequence[Axes], number: int, *, is_first: bool) -> None:
        """Draw run ``number`` into four axes from top to bottom; the first column of a band carries the labels."""
        run = self.runs[number]
        axes[0].set_title(_wrap(run.name, width=30, lines=2), fontsize=8.5, fontweight="bold", parse_math=False)
        for row, quantity in enumerate(QUANTITIES):
            grid = self.grids[row][number]
            if is_first:
                axes[row].set_ylabel(f"{quantity.title}\nblock")
            if grid is None:
                _say_not_recorded(axes[row])
            else:
                self._draw_heat_map(axes[row], grid, row)
        self._draw_loss(axes[3], number, is_first=is_first)
        axes[3].text(
            0.5, -0.42, self._caption(run), transform=axes[3].transAxes, ha="center", va="top", fontsize=8.5,
            parse_math=False,
        )  # fmt: skip

    def draw_color_bar(self, axes: Axes, row: int) -> None:
        """Draw the color scale of one quantity; nothing where no run recorded it."""
        scale = self.scales[row]
        if not any(self.grids[row]):
            axes.set_axis_off()
            return
        ramp = np.linspace(scale.low, scale.high, 256)[:, None]
        axes.imshow(ramp, extent=(0, 1, scale.low, scale.high), aspect="auto", origin="lower", cmap="viridis")
        places = ticks(scale.low, scale.high, log=scale.log)
        axes.set_yticks(places, [scale_label(place, log=scale.log) for place in places])
        axes.yaxis.tick_right()
        axes.set_xticks([])

    def _draw_heat_map(self, axes: Axes, grid: Grid, row: int) -> None:
        from matplotlib.colors import ListedColormap

        cells = thin_grid(grid, max_rows=MAX_ROWS, max_columns=MAX_COLUMNS)
        x, y = step_bounds(grid.steps)[cells.step_edges], cells.site_edges - 0.5
        shown = np.where(cells.codes == ZERO, self.scales[row].low, cells.values)
        values = np.ma.masked_invalid(shown)
        axes.pcolormesh(x, y, values, cmap="viridis", vmin=self.scales[row].low, vmax=self.scales[row].high)
        bad = cells.codes == NONFINITE
        if bad.any():
            marked = np.ma.masked_where(~bad, np.ones(bad.shape))
            axes.pcolormesh(x, y, marked, cmap=ListedColormap([NONFINITE_COLOR]))
            axes.scatter(*_crosses(bad, x, y), marker="x", s=9, linewidths=0.9, color="white")
        places = grid.tick_places(at_most=5)
        axes.set_yticks(places, [str(grid.block_numbers[place]) for place in places])
        axes.locator_params(axis="x", nbins=4, integer=True)
        _mark_bands(axes, grid)

    def _draw_loss(self, axes: Axes, number: int, *, is_first: bool) -> None:
        run = self.runs[number]
        steps, losses = run_series(run.recording, "loss")
        if is_first:
            axes.set_ylabel("Loss")
        if not len(steps):
            _say_not_recorded(axes)
            return
        kept = thin_curve(losses, 500)
        marker = "o" if len(kept) < 3 else None
        axes.plot(
            steps[kept], self.loss_axis.place(losses[kept]), color=CURVE_COLORS[0], linewidth=1.2, marker=marker, ms=3
        )
        above = steps[self.loss_axis.above(losses)]
        axes.scatter(
            above,
            np.full(len(above), self.loss_axis.high),
            marker="^",
            s=22,
            color=CURVE_COLORS[0],
            clip_on=False,
            zorder=3,
        )
        bad = first_nonfinite_step(run.recording, [grids[number] for grids in self.grids])
        if bad is not None:
            axes.axvline(bad, color=NONFINITE_COLOR, linestyle="--", linewidth=1.2)
            axes.text(
                0.97, 0.94, f"x non-finite at step {bad}", transform=axes.transAxes, ha="right", va="top", fontsize=7.5,
                bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
            )  # fmt: skip
        places, labels = self.loss_axis.ticks()
        axes.set_yticks(places, labels if is_first else [])
        axes.set_xlim(*step_bounds(steps)[[0, -1]])
        axes.set_ylim(self.loss_axis.low, self.loss_axis.high)
        axes.set_xlabel("step", labelpad=1)
        axes.locator_params(axis="x", nbins=4, integer=True)
        axes.grid(True, color="#e3e6eb", linewidth=0.6)

    def _caption(self, run: RunView) -> str:
        outcome = format_value(run.summary["outcome"]) if "outcome" in run.summary else "outcome not recorded"
        if run.root is not None:
            cause = run.root.cause
        else:
            examined = "nothing stands out" if run.looks_healthy else "no cause found"
            cause = examined if run.was_examined else "not evaluated"
        return f"{_wrap(outcome, width=32, lines=1)}\n{_wrap(cause, width=32, lines=2)}"


def _mark_bands(axes: Axes, grid: Grid) -> None:
    """Lines between bands, and the name of each."""
    if len(grid.bands) < 2:
        return
    for band in grid.bands:
        if band.first:
            axes.axhline(band.first - 0.5, color="white", linewidth=1.5)
        axes.text(
            0.02, band.end - 0.5 - 0.01 * len(grid.sites), drawable(band.label, limit=28), fontsize=5.5, color="white",
            transform=axes.get_yaxis_transform(), va="top", parse_math=False,
            bbox={"facecolor": "black", "edgecolor": "none", "alpha": 0.5, "pad": 0.8},
        )  # fmt: skip


def _wrap(text: str, *, width: int, lines: int) -> str:
    shown = drawable(text, limit=width * lines - 4)
    return "\n".join(textwrap.wrap(shown, width, break_on_hyphens=False)[:lines])


def _crosses(bad: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[list[float], list[float]]:
    """Centers of one non-finite cell in each patch of the map: color alone tells nobody who cannot see it."""
    height, width = (max(math.ceil(size / CROSSES), 1) for size in bad.shape)
    places: tuple[list[float], list[float]] = ([], [])
    for top in range(0, bad.shape[0], height):
        for left in range(0, bad.shape[1], width):
            found = np.argwhere(bad[top : top + height, left : left + width])
            if len(found):
                row, column = found[len(found) // 2] + (top, left)
                places[0].append((x[column] + x[column + 1]) / 2)
                places[1].append((y[row] + y[row + 1]) / 2)
    return places


def _say_not_recorded(axes: Axes) -> None:
    axes.text(0.5, 0.5, NOT_RECORDED, transform=axes.transAxes, ha="center", va="center", color="#555b66")
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_linestyle(":")
