"""The picture of docs/schemes.md: stream and gradient along the depth under every scheme, predicted and measured.

    OMP_NUM_THREADS=1 python benchmarks/schemes_picture.py [--branches 256] [--seeds 3] [--width 128]

Networks at initialization, two branches per layer, read between layers; one forward and one backward pass per draw.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from predicted_and_measured import BRANCHES_PER_LAYER, Comparison, compare

from kilolayer.schemes import SCHEMES

PICTURE = Path(__file__).parent.parent / "docs" / "schemes.png"
NUM_COLUMNS = 4
PANEL = (2.5, 1.75)
LEAST_SPAN = 4.0
"""Axes span at least this factor, so that a flat curve looks flat."""
QUANTITIES = (("stream", "#0072b2"), ("gradient", "#d55e00"))


def draw_panel(axes: Axes, comparison: Comparison) -> None:
    """Bands and their medians for theory, thin lines for draws."""
    name = comparison.prediction.network.resolved_scheme.name
    axes.set_title(name, fontsize=8, pad=3)
    for quantity, color in QUANTITIES:
        band = getattr(comparison.prediction, quantity)
        positions = np.arange(0, len(band.median), BRANCHES_PER_LAYER)  # between layers
        axes.fill_between(positions, band.low[positions], band.high[positions], color=color, alpha=0.18, linewidth=0)
        axes.plot(positions, band.median[positions], color=color, linewidth=1.6, linestyle=(0, (4, 2)))
        for draw in comparison.draws:
            axes.plot(positions, getattr(draw, quantity)[positions], color=color, linewidth=0.6)
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    middle = np.sqrt(low * high)
    axes.set_ylim(min(low, middle / LEAST_SPAN), max(high, middle * LEAST_SPAN))
    axes.set_xlim(0, positions[-1])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter("{x:g}")
    axes.tick_params(labelsize=6.5, length=2)


def draw(comparisons: list[Comparison]) -> Figure:
    """A panel per scheme, with the key to all of them in the last place."""
    num_rows = -(-(len(comparisons) + 1) // NUM_COLUMNS)
    figure = Figure(figsize=(PANEL[0] * NUM_COLUMNS, PANEL[1] * num_rows), dpi=110, layout="constrained")
    panels = figure.subplots(num_rows, NUM_COLUMNS, squeeze=False).ravel()
    for axes, comparison in zip(panels, comparisons, strict=False):
        draw_panel(axes, comparison)
    for axes in panels[len(comparisons) :]:
        axes.axis("off")
    keys = [panels[0].plot([], [], color=color, linewidth=2)[0] for _, color in QUANTITIES]
    keys += [panels[0].plot([], [], color="0.3", linewidth=1.6, linestyle=(0, (4, 2)))[0]]
    keys += [panels[0].plot([], [], color="0.3", linewidth=0.6)[0]]
    labels = ["RMS of the stream", "RMS of its gradient", "predicted, with 95 % band", "measured, one draw"]
    panels[-1].legend(keys, labels, loc="center", fontsize=8, frameon=False)
    figure.supxlabel("branch, from the input (left) to the output", fontsize=8)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--branches", type=int, default=256)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--width", type=int, default=128)
    options = parser.parse_args()
    comparisons = [
        compare(scheme.name, options.branches, width=options.width, seeds=options.seeds, norm="layer")
        for scheme in SCHEMES
    ]
    with rc_context({"font.size": 7}):
        draw(comparisons).savefig(PICTURE)
    print(f"{PICTURE.name}: {PICTURE.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
