"""The pictures of a page that do not lie over steps and depth: the structure strip and the curves of trials."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kilolayer.report.group import Group, Picture
from kilolayer.report.lines import rounded
from kilolayer.report.loss import LossAxis
from kilolayer.report.panel import Names
from kilolayer.report.scale import step_ticks
from kilolayer.report.screen import trial_text
from kilolayer.report.strip import MAX_BRANCHES, branch_sites, strip_panel, strip_words
from kilolayer.report.text import inert
from kilolayer.report.thin import thin_curve
from kilolayer.report.trial import TrialView
from kilolayer.report.view import RunView

MAX_DRAWN_TRIALS = 24
MAX_CURVES = 5
"""Curves of one trial that are told apart by color and dash."""

BRANCHES_IN_ALL = 40_000


def structure_group(runs: Sequence[RunView], *, names: Names, panels: list[dict[str, Any]]) -> Group:
    """A strip for each run; says so where a run's site table knows of no block."""
    limit = min(max(BRANCHES_IN_ALL // max(len(runs), 1), 64), MAX_BRANCHES)
    pictures = []
    for run in runs:
        sites = branch_sites(run.recording)
        if not sites:
            pictures.append(Picture(inert(run.name), "Structure: not recorded in this run.", None))
            continue
        panels.append(strip_panel(sites, names, limit=limit))
        pictures.append(Picture(inert(run.name), strip_words(sites), len(panels) - 1))
    meaning = "What every residual branch is, from the input to the output: its norms, its skip, its scales."
    return Group("structure", "Structure", meaning, tuple(pictures))


def trials_group(runs: Sequence[RunView], panels: list[dict[str, Any]]) -> Group:
    """The loss with and without every remedy that was tried, on one axis for all; empty where none has curves."""
    tried = [(run, trial) for run in runs for trial in run.trials if any(map(len, trial.curves.values()))]
    axis = LossAxis([np.asarray(curve) for _, trial in tried for curve in trial.curves.values()])
    pictures = []
    for run, trial in tried[:MAX_DRAWN_TRIALS]:
        panels.append(trial_panel(trial, axis))
        label = trial.name if len(runs) == 1 else f"{run.name}: {trial.name}"
        pictures.append(Picture(inert(label), f"Loss: {trial_text(trial)}.", len(panels) - 1))
    meaning = "The same set-up, seed and budget, with and without the change."
    return Group("trials", "Remedies tried", meaning, tuple(pictures))


def trial_panel(trial: TrialView, axis: LossAxis, *, limit: int = 500) -> dict[str, Any]:
    """The curves of one trial as data for ``report.js``."""
    curves = [(label, np.asarray(losses)) for label, losses in trial.curves.items()][:MAX_CURVES]
    longest = max(len(losses) for _, losses in curves)
    drawn = []
    for label, losses in curves:
        kept = thin_curve(losses, limit)
        drawn.append({"name": inert(label, limit=40), "x": kept.tolist(), "y": rounded(axis.place(losses[kept]))})
    return {
        "curves": drawn,
        "log": axis.log,
        "x_ticks": step_ticks(-0.5, longest - 0.5, count=5),
        "y_range": [axis.low, axis.high],
        "y_ticks": list(axis.ticks()),
    }
