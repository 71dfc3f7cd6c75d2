"""The pictures of ``kilolayer lab wirings``: report.html and report.png."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from kilolayer.lab.wirings_results import RunResult, first_weights
from kilolayer.report import Prediction, Report, RunView, save_report

MAX_RUNS = 24
"""More runs side by side are not read; the report shows one seed of each then."""


def save_reports(results: Sequence[RunResult], folder: Path) -> list[Path]:
    """Write ``report.html`` and ``report.png`` into the folder and return their paths."""
    shown = list(results)
    if len(shown) > MAX_RUNS:
        first = min(result.run.seed for result in shown)
        shown = [result for result in shown if result.run.seed == first][:MAX_RUNS]
    views = [to_view(result) for result in shown]
    environment = {
        "kilolayer": "lab wirings",
        "data": results[0].data.name,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    report = Report(views, "lab wirings", sentence(results), environment)
    return [save_report(report, folder / f"report{suffix}") for suffix in (".html", ".png")]


def sentence(results: Sequence[RunResult]) -> str:
    """The experiment in one sentence."""
    good = list(dict.fromkeys(r.run.wiring for r in results if r.result["outcome"] == "trains"))
    causes: dict[str, list[str]] = {}
    for result in results:
        root = result.diagnosis.root
        if root is not None and result.run.wiring not in causes.setdefault(root.cause, []):
            causes[root.cause].append(result.run.wiring)
    run = results[0].run
    trained = f"{', '.join(good)} train" if good else "none of the wirings trains"
    if len(good) == 1:
        trained = f"only {good[0]} trains"
    blamed = "; ".join(f"{cause} in {', '.join(names)}" for cause, names in causes.items() if names)
    return f"Of {run.num_blocks}-block networks {trained}" + (f". What the others lack: {blamed}." if blamed else ".")


def to_view(result: RunResult) -> RunView:
    """One run as the report shows it."""
    run, numbers = result.run, result.result
    std, grad = result.predicted
    stream = tuple(site.name for site in result.init.stream())
    weights = tuple(site.name for site in first_weights(result.init))
    scatter = {"low": std.low, "high": std.high} if std.scatters else {}
    return RunView(
        name=f"{run.wiring}  lr {run.lr:g}  seed {run.seed}",
        recording=result.training,
        root=result.diagnosis.root,
        findings=result.diagnosis.findings,
        summary={
            "outcome": numbers["outcome"],
            "loss": numbers["loss"],
            "accuracy": numbers["accuracy"],
            "non-finite at step": numbers["nonfinite_step"],
            "seconds": numbers["seconds"],
        },
        predictions=(
            Prediction("activation", "rms", stream, std.value, **scatter),
            Prediction("param_grad", "l2_norm", weights, grad.value, low=grad.low, high=grad.high),
        ),
    )
