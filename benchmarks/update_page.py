"""docs/update.md from finished runs; the prose between the tables is kept in update_notes.md."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

import kilolayer
from kilolayer.lab.update_experiment import Curve, UpdateExperiment, load_curves
from kilolayer.lab.update_picture import draw_png
from kilolayer.lab.update_tables import PARTS, exponent, gradient_ratios, spread
from kilolayer.report import format_number

DOCS = Path(__file__).resolve().parent.parent / "docs"
NOTES = Path(__file__).with_name("update_notes.md")


def write_page(experiments: dict[str, UpdateExperiment], out: Path) -> None:
    """Fill the notes' ``{{name}}`` places with tables and write page and picture."""
    curves = {name: load_curves(one, out / name) if (out / name).is_dir() else [] for name, one in experiments.items()}
    steps = [curve for name, found in curves.items() if name.startswith("steps") for curve in found]
    parts = {
        "provenance": provenance(experiments, curves),
        "law": law_table(curves["law"]),
        "exponent": exponent_table(curves["exponent"]),
        "step-0": step_0_table(curves["law"]),
        "norms": norm_table(curves["law"]),
        "gradients": gradient_table(steps),
    }
    text = NOTES.read_text(encoding="utf-8")
    for name, part in parts.items():
        text = text.replace("{{" + name + "}}", part)
    (DOCS / "update.md").write_text(text, encoding="utf-8")
    (DOCS / "update.png").write_bytes(draw_png(curves["law"]))


def provenance(experiments: dict[str, UpdateExperiment], curves: dict[str, list[Curve]]) -> str:
    """Versions, date, and how many of the planned runs there are."""
    done = {name: sum(len(at) for curve in found for at in curve.results) for name, found in curves.items()}
    counts = ", ".join(f"{name} {done[name]} of {len(one.runs)} runs" for name, one in experiments.items())
    return (
        f"kilolayer {kilolayer.__version__}, torch {torch.__version__}, NumPy {np.__version__}, Python "
        f"{platform.python_version()}, {platform.machine()}, float64, one thread; {time.strftime('%Y-%m-%d')}; "
        f"{counts}. Seeds are 0, 1, 2 in order; none was chosen."
    )


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def law_table(curves: Sequence[Curve]) -> str:
    """Updates after one step by depth, their growth, and theory's."""
    depths = sorted({depth for curve in curves for depth in curve.num_branches})
    rows = []
    for curve in curves:
        name = [f"`{curve.setting.scheme}`", f"{curve.setting.optimizer} {curve.setting.lr:g}"]
        for key, part in PARTS:
            at = dict(zip(curve.num_branches, curve.updates(key, 1), strict=True))
            cells = [spread(at.get(depth, [])) for depth in depths]
            rows.append([*name, part, *cells, exponent(curve.growth(key, 1))])
        if curve.sums is not None:
            sums = dict(zip(curve.num_branches, curve.sums, strict=True))
            cells = [format_number(sums.get(depth)) for depth in depths]
            rows.append([*name, "theory's sum", *cells, exponent(curve.sum_growth("matrix_updates", 1))])
            ratios = constant(curve)
            cells = [format_number(ratios.get(depth)) for depth in depths]
            rows.append([*name, "matrices / sum, seed 0", *cells, ""])
    return markdown(["scheme", "optimizer", "", *map(str, depths), "growth"], rows)


def constant(curve: Curve) -> dict[int, float]:
    """Update of the matrices over theory's sum by depth, for the first seed: seeds differ in their gradients' size."""
    assert curve.sums is not None
    updates = zip(curve.num_branches, curve.updates("matrix_updates", 1), curve.sums, strict=True)
    return {depth: found[0] / total for depth, found, total in updates if found}


def exponent_table(curves: Sequence[Curve]) -> str:
    """Growth with depth by the exponent of DeepNorm's scales."""
    depths = sorted({depth for curve in curves for depth in curve.num_branches})
    rows = []
    for curve in curves:
        power = curve.setting.scheme.rpartition("-")[2]
        at = dict(zip(curve.num_branches, curve.updates("matrix_updates", 1), strict=True))
        cells = [spread(at.get(depth, [])) for depth in depths]
        rows.append(
            [
                power,
                *cells,
                exponent(curve.growth("matrix_updates", 1)),
                exponent(curve.sum_growth("matrix_updates", 1)),
                exponent(curve.growth("updates", 1)),
            ]
        )
    return markdown(["p", *map(str, depths), "growth", "theory: 1 - 4p", "growth, all parameters"], rows)


def step_0_table(curves: Sequence[Curve]) -> str:
    """Along the stack at step 0, by depth."""
    rows = []
    for curve in curves:
        if curve.setting.optimizer != curves[0].setting.optimizer:
            continue
        for depth, results in zip(curve.num_branches, curve.results, strict=True):
            starts = [result["start"] for result in results]
            rows.append(
                [
                    f"`{curve.setting.scheme}`",
                    str(depth),
                    *(spread([start["branch_to_skip"][end] for start in starts]) for end in (0, -1)),
                    spread([start["neighbor_cosine"][-1] for start in starts]),
                    spread([start["input_cosine"][-1] for start in starts]),
                    spread([start["token_cosine"][-1] for start in starts]),
                    spread([start["stream_rms"][-1] for start in starts]),
                    spread([max(start["sum_max_abs"]) for start in starts]),
                    spread(gradient_ratios(results, "start")),
                    spread([grads[0] / grads[-1] for grads in (s["grad_norm_by_branch"] for s in starts)]),
                ]
            )
    header = ["scheme", "branches", "branch / skip, first", "last", "cosine of the last two streams"]
    header += ["of the last with x_0", "between tokens", "stream RMS", "largest entry of a sum"]
    return markdown([*header, "stream gradient, bottom / top", "weight gradient, bottom / top"], rows)


def norm_table(curves: Sequence[Curve]) -> str:
    """The norms' Jacobians at step 0: by formula and measured."""
    rows = []
    for curve in curves:
        if curve.setting.optimizer != curves[0].setting.optimizer:
            continue
        depth, start = curve.num_branches[-1], curve.results[-1][0]["start"]
        for place in (0, -1):
            one = start["spectra"][place]
            cells = [format_number(start[key][place]) for key in ("norm_gain", "norm_gain_expected")]
            for kind in ("measured", "formula"):
                found = one[kind]
                low, high = format_number(found["smallest"]), format_number(found["largest"])
                cells.append(f"{low} to {high}, {found['num_removed']} removed")
            rows.append([f"`{curve.setting.scheme}`", f"{one['branch_index'] + 1} of {depth}", *cells])
    header = ["scheme", "branch", "gain on random directions", "by formula"]
    return markdown([*header, "singular values, measured", "by formula"], rows)


def gradient_table(curves: Sequence[Curve]) -> str:
    """The stream's gradient at the bottom over that at the top, before and behind the steps."""
    depths = sorted({depth for curve in curves for depth in curve.num_branches})
    rows = []
    for curve in curves:
        at = dict(zip(curve.num_branches, curve.results, strict=True))
        for when, text in (("start", "step 0"), ("end", "after 8")):
            if when == "start" and curve.setting.optimizer != curves[0].setting.optimizer:
                continue
            cells = [spread(gradient_ratios(at.get(depth, ()), when)) for depth in depths]
            how = "" if when == "start" else f"{curve.setting.optimizer} {curve.setting.lr:g}"
            rows.append([curve.setting.network, f"`{curve.setting.scheme}`", f"{text} {how}".strip(), *cells])
    return markdown(["network", "scheme", "when", *map(str, depths)], rows)
