"""Remedies tried on a diagnosed set-up, and what they change in the verdict."""

from __future__ import annotations

import dataclasses
from typing import Any

from kilolayer.check.loop import train
from kilolayer.check.setup import Setup
from kilolayer.check.source import Build
from kilolayer.diagnosis import Diagnosis, Finding, Trial
from kilolayer.diagnosis.examined import Examined
from kilolayer.remedies import SharedObjects, prove, remedies_for
from kilolayer.remedies.trial import STEPS

NO_FUNCTION = "a set-up was given, and a trial needs another one: pass the function that builds it"


def with_trials(diagnosis: Diagnosis, build: Build | None, *, steps: int | None, budget_s: float) -> Diagnosis:
    """The verdict with the root's remedies tried; the best that helped leads its remedy.

    Where none can be tried, ``not_evaluated["trials"]`` says why.

    Args:
        diagnosis: with its recording.
        build: builds a set-up of its own at each call; ``None`` where there is no function.
        steps: of each run at most.
        budget_s: seconds for all of them.
    """
    root, recording = diagnosis.root, diagnosis.recording
    if root is None or recording is None:
        return diagnosis
    found = Examined(recording)
    if not remedies_for(root):
        return _without_trials(diagnosis, f"no edit is known that answers {root.cause}")
    if build is None:
        return _without_trials(diagnosis, NO_FUNCTION)
    if not found.facts["optimizer"]:
        return _without_trials(diagnosis, "a set-up without an optimizer cannot be trained")
    try:
        trials = prove(root, build, train=_train, found=found, steps=steps or STEPS, budget_s=budget_s)
    except SharedObjects as error:
        return _without_trials(diagnosis, str(error))
    led = dataclasses.replace(root, remedy=lead(root, trials))
    findings = tuple(led if one is root else one for one in diagnosis.findings)
    return dataclasses.replace(diagnosis, root=led, findings=findings, trials=trials)


def _train(setup: Any, steps: int, budget_s: float) -> Any:
    assert isinstance(setup, Setup)
    return train(setup, steps, budget_s)


def lead(root: Finding, trials: tuple[Trial, ...]) -> str:
    """The finding's remedy, led by the best that was proven."""
    best = next((trial for trial in trials if trial.helped), None)
    if best is None:
        return root.remedy
    before = "not finite" if best.loss_before != best.loss_before else f"{best.loss_before:.3g}"
    proven = f"{best.name} ({best.note}), loss {before} -> {best.loss_after:.3g} over {best.steps} steps"
    return f"Proven: {proven}. {root.remedy}"


def _without_trials(diagnosis: Diagnosis, why: str) -> Diagnosis:
    return dataclasses.replace(diagnosis, not_evaluated={**diagnosis.not_evaluated, "trials": why})
