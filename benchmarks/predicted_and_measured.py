"""Predicted and measured stream and gradient of every scheme, as the table in docs/theory.md.

    OMP_NUM_THREADS=1 python benchmarks/predicted_and_measured.py [--branches 64 256 1000] [--seeds 5] [--width 256]
        [--schemes pre-ln deepnorm] [--norm layer] [--jobs 1] [--page docs/theory.md]

One forward and one backward pass per network at initialization. Without --page the table goes to standard output;
with --page docs/theory.md it replaces what stands between the two markers of that page.
"""

from __future__ import annotations

import argparse
import platform
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

import kilolayer
from kilolayer.lab.scheme_stream import Measured, measure_scheme
from kilolayer.schemes import SCHEMES
from kilolayer.theory import NetworkSpec, SchemePrediction, SizeBand, predict_scheme

BRANCHES_PER_LAYER = 2
BATCH_SIZE = 32
CLOSE = np.log(1.10)
START, END = "<!-- predicted-and-measured: begin -->", "<!-- predicted-and-measured: end -->"


@dataclass(frozen=True)
class Comparison:
    """One network, predicted once and measured on several draws."""

    prediction: SchemePrediction
    draws: list[Measured]

    def row(self) -> str:
        """A line of the table."""
        network = self.prediction.network
        stream = self._cells(self.prediction.stream, np.array([one.stream for one in self.draws]), end=-1)
        gradient = self._cells(self.prediction.gradient, np.array([one.gradient for one in self.draws]), end=0)
        name = f"`{network.resolved_scheme.name}`"
        return f"| {name} | {network.depth.total_branches} | {stream} | {gradient} |"

    def _cells(self, band: SizeBand, measured: np.ndarray, *, end: int) -> str:
        """Predicted and measured at one end, worst deviation of the median over depth, share of points covered."""
        errors = np.log(measured) - band.log_median
        median_error = float(np.abs(np.median(errors, axis=0)).max())
        covered = (np.abs(errors) <= CLOSE) | ((band.low <= measured) & (measured <= band.high))
        low, high = band.low[end], band.high[end]
        seen = np.sort(measured[:, end])
        values = f"{seen[len(seen) // 2]:.3g} ({seen[0]:.3g} to {seen[-1]:.3g})"
        predicted = f"{band.median[end]:.3g} ({low:.3g} to {high:.3g})"
        return f"{predicted} | {values} | {_deviation(median_error)} | {covered.mean():.0%}"


def _deviation(log_error: float) -> str:
    """A small deviation in percent, a large one as a factor."""
    factor = float(np.exp(log_error))
    return f"{factor - 1:.1%}" if factor < 2 else f"x {factor:.2g}"


def compare(name: str, branches: int, *, width: int, seeds: int, norm: str) -> Comparison:
    """Predict one network and measure it on ``seeds`` draws."""
    torch.set_num_threads(1)
    network = NetworkSpec(
        scheme=name,
        num_layers=branches // BRANCHES_PER_LAYER,
        width=width,
        branches_per_layer=BRANCHES_PER_LAYER,
        norm=norm,
    )
    prediction = predict_scheme(network, batch_size=BATCH_SIZE)
    draws = [measure_scheme(network, batch_size=BATCH_SIZE, seed=seed) for seed in range(seeds)]
    return Comparison(prediction, draws)


def build_page_part(options: argparse.Namespace) -> str:
    """The table, with the command and the versions it came from."""
    command = " ".join(["OMP_NUM_THREADS=1 python", *sys.argv])
    lines = [
        f"`{command}`",
        "",
        f"kilolayer {kilolayer.__version__}, torch {torch.__version__}, NumPy {np.__version__}, Python "
        f"{platform.python_version()}; width {options.width}, {BATCH_SIZE} samples, {BRANCHES_PER_LAYER} branches per "
        f"layer, ReLU, {options.norm} norm, Kaiming; seeds 0 to {options.seeds - 1}.",
        "",
        "| scheme | branches | stream RMS at the top, predicted (95 %) | measured (all seeds) | worst | covered "
        "| gradient RMS at the bottom, predicted (95 %) | measured (all seeds) | worst | covered |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    one = partial(_row, width=options.width, seeds=options.seeds, norm=options.norm)
    networks = [(scheme, branches) for scheme in options.schemes for branches in options.branches]
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        for row in pool.map(one, networks):
            lines.append(row)
            print(row, file=sys.stderr, flush=True)
    return "\n".join(lines)


def _row(network: tuple[str, int], *, width: int, seeds: int, norm: str) -> str:
    name, branches = network
    return compare(name, branches, width=width, seeds=seeds, norm=norm).row()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--branches", type=int, nargs="+", default=[64, 256, 1000])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--schemes", nargs="+", default=[scheme.name for scheme in SCHEMES])
    parser.add_argument("--norm", default="layer")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    part = build_page_part(options)
    if options.page is None:
        print(part)
        return
    text = options.page.read_text()
    before, rest = text.split(START)
    after = rest.split(END)[1]
    options.page.write_text(f"{before}{START}\n{part}\n{END}{after}")


if __name__ == "__main__":
    main()
