"""How well theory foresees step 0: bands over 30 seeds where draws scatter, values where norms stand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch

from kilolayer.lab.data import load_data
from kilolayer.lab.wirings import WIRINGS, WiringRun, build_model, examine, probe_indices
from kilolayer.lab.wirings_results import first_weights, predict_step_0, rows_at

NUM_SEEDS = 30
SETTINGS = ((16, 128), (64, 128), (64, 256))


def measure_coverage(mnist: str, path: Path) -> None:
    """Fill the file with one row per wiring and size, keeping what is there; about six minutes of computing."""
    torch.set_num_threads(1)
    rows = json.loads(path.read_text()) if path.exists() else {}
    for blocks, width in SETTINGS:
        for wiring in WIRINGS:
            key = f"{wiring.name} {blocks} {width}"
            if key not in rows:
                rows[key] = coverage_row(wiring.name, blocks, width, mnist)
                path.write_text(json.dumps(rows))


def coverage_section(path: Path) -> str:
    """The section of the page."""
    rows = json.loads(path.read_text()).values() if path.exists() else []
    columns = ["wiring", "blocks", "width", "std: in the 95 % band", "std: largest error of the value"]
    columns += ["gradient: in the 95 % band", "gradient: median over seeds / predicted"]
    header = f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}\n"
    body = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"""
## What theory foresees at step 0, {NUM_SEEDS} seeds on MNIST

Blocks 1, 8, 16, 32 and the last, seeds 0 to {NUM_SEEDS - 1}, each with its own 256 samples. Chains without a norm on the
stream scatter by nature: there the share of (seed, block) pairs inside the 95 % band is the test. Elsewhere the value is.

{header}{body}
"""


def coverage_row(name: str, blocks: int, width: int, mnist: str) -> list[str]:
    """One wiring at one size."""
    data = load_data(mnist)
    places = rows_at(blocks)
    std_inside, std_errors, grad_inside, grad_ratios = [], [], [], []
    scatters = False
    for seed in range(NUM_SEEDS):
        run = WiringRun(name, seed, 0.05, num_blocks=blocks, width=width)
        probe = torch.from_numpy(probe_indices(run, len(data.x_train)))
        init = examine(
            build_model(run, data), torch.from_numpy(data.x_train)[probe], torch.from_numpy(data.y_train)[probe]
        )
        std_band, (grad_band, *_) = predict_step_0(run, data)
        std = init.curve("activation", "std", init.stream())[places]
        grad = init.curve("param_grad", "l2_norm", first_weights(init))[places]
        scatters = std_band.scatters
        std_inside.append((std_band.low[places] <= std) & (std <= std_band.high[places]))
        std_errors.append(np.abs(std / std_band.value[places] - 1))
        grad_inside.append((grad_band.low[places] <= grad) & (grad <= grad_band.high[places]))
        grad_ratios.append(grad / grad_band.value[places])
    ratios = np.median(grad_ratios, axis=0)
    return [
        name,
        str(blocks),
        str(width),
        f"{100 * np.mean(std_inside):.0f} %" if scatters else "-",
        "-" if scatters else f"{100 * np.max(std_errors):.1f} %",
        f"{100 * np.mean(grad_inside):.0f} %",
        f"{ratios.min():.2f} to {ratios.max():.2f}",
    ]
