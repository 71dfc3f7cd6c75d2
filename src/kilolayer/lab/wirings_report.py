"""The pictures of ``kilolayer lab wirings``: report.html and report.png."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import kilolayer
from kilolayer.lab.wirings_results import RunResult
from kilolayer.recording import Recording
from kilolayer.report import MAX_DRAWN_RUNS, Prediction, Report, RunView, save_report

TITLE = "kilolayer lab wirings"


def save_reports(results: Sequence[RunResult], folder: Path) -> list[Path]:
    """Write ``report.html`` and ``report.png`` into the folder and return their paths.

    Of more runs than the report draws, one seed of each setting comes before the next seed.
    """
    shown = sorted(results, key=lambda r: r.run.seed) if len(results) > MAX_DRAWN_RUNS else results
    views = [to_view(result, predicted=number < MAX_DRAWN_RUNS) for number, result in enumerate(shown)]
    said: dict[str, Any] = {"title": TITLE, "sentence": sentence(results)}
    said |= {"settings": settings(results), "environment": environment()}
    page = save_report(Report(views, **said), folder / "report.html")
    return [page, save_report(Report(views[:MAX_DRAWN_RUNS], **said), folder / "report.png")]


def environment() -> dict[str, str]:
    """Versions and machine."""
    return {
        "kilolayer": kilolayer.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


def settings(results: Sequence[RunResult]) -> dict[str, Any]:
    """What was run, in the words of the command's options."""
    run = results[0].run
    return {
        "runs": len(results),
        "wirings": list(dict.fromkeys(result.run.wiring for result in results)),
        "learning rates": [f"{lr:g}" for lr in dict.fromkeys(result.run.lr for result in results)],
        "seeds": sorted({result.run.seed for result in results}),
        "data": results[0].data.name,
        "blocks": run.num_blocks,
        "width": run.width,
        "norm": run.norm,
        "steps": run.num_steps,
        "batch size": run.batch_size,
        "warm-up steps": run.warmup_steps,
        "backend": run.backend,
    }


def sentence(results: Sequence[RunResult]) -> str:
    """The experiment in one sentence."""
    outcomes: dict[str, list[bool]] = {}
    causes: dict[str, dict[str, None]] = {}
    for result in results:
        outcomes.setdefault(result.run.wiring, []).append(result.result["outcome"] == "trains")
        root = result.diagnosis.root
        if root is not None:
            causes.setdefault(root.cause, {})[result.run.wiring] = None
    trained = _who_trains(
        [name for name, trains in outcomes.items() if all(trains)],
        [name for name, trains in outcomes.items() if any(trains) and not all(trains)],
    )
    blamed = "; ".join(f"{cause} in {', '.join(names)}" for cause, names in causes.items())
    return f"Of {results[0].run.num_blocks}-block networks {trained}." + (f" Causes: {blamed}." if blamed else "")


def _who_trains(always: Sequence[str], sometimes: Sequence[str]) -> str:
    if not always and not sometimes:
        return "none of the wirings trains"
    if len(always) == 1:
        trained = f"only {always[0]} trains" + (" in every run" if sometimes else "")
    elif always:
        trained = f"{', '.join(always)} train" + (" in every run" if sometimes else "")
    else:
        trained = "none of the wirings trains in every run"
    return trained + (f", {', '.join(sometimes)} in some" if sometimes else "")


def to_view(result: RunResult, *, predicted: bool = True) -> RunView:
    """One run as the report shows it, with what theory predicts or without."""
    run, numbers = result.run, result.result
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
        predictions=_predictions(result) if predicted else (),
    )


def _predictions(result: RunResult) -> tuple[Prediction, Prediction]:
    std, grads = result.predicted
    stream = tuple(site.name for site in result.init.stream())
    scatter = {"low": std.low, "high": std.high} if std.scatters else {}
    by_matrix = weights_by_matrix(result.init)
    value, low, high = (np.concatenate([getattr(band, end) for band in grads]) for end in ("value", "low", "high"))
    return (
        Prediction("activation", "rms", stream, std.value, **scatter),
        Prediction("param_grad", "l2_norm", sum(by_matrix, ()), value, low=low, high=high),
    )


def weights_by_matrix(recording: Recording) -> list[tuple[str, ...]]:
    """Names of the first weight matrix of every block, then of the second, and so on."""
    in_block: dict[int | None, list[str]] = {}
    for site in recording.weights():
        in_block.setdefault(site.block_index, []).append(site.name)
    return list(zip(*in_block.values(), strict=True))
