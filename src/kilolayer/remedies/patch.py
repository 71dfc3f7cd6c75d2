"""The change of code that a remedy stands for: a diff of the user's file where its line is found, else a snippet."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

from kilolayer.diagnosis.examined import Examined
from kilolayer.diagnosis.finding import Finding
from kilolayer.diagnosis.trial import Trial
from kilolayer.remedies.registry import remedies_for
from kilolayer.remedies.remedy import Remedy
from kilolayer.remedies.rewrite import REWRITES


def render_patch(finding: Finding, found: Examined, *, trials: Sequence[Trial] = (), path: Path | None = None) -> str:
    """The change of code for a finding: of the remedy that was proven best, else of the one that fits best.

    A unified diff of the file at ``path`` where the line to change is found there for certain, and can be applied
    with ``patch`` or ``git apply``; otherwise a snippet to be put in by hand. Lines above it, as comments, say what
    it is and whether it was proven.

    Args:
        finding: the root finding.
        found: what the examination saw.
        trials: remedies that were tried.
        path: the user's file.

    Raises:
        ValueError: no remedy is known for the cause.
    """
    remedy, trial = choose(finding, trials)
    diff = None if path is None else diff_of(remedy, finding, found, path=path)
    note = _proof(trial)
    head = f"# {finding.code} {finding.cause}: {remedy.name}, {note}\n"
    return head + (diff if diff is not None else f"{remedy.patch(finding, found)}\n")


def choose(finding: Finding, trials: Sequence[Trial] = ()) -> tuple[Remedy, Trial | None]:
    """The remedy to write down, and its trial.

    Raises:
        ValueError: no remedy is known for the cause.
    """
    remedies = remedies_for(finding)
    if not remedies:
        raise ValueError(f"no remedy is known for {finding.cause}; see kilolayer explain {finding.code}")
    by_name = {remedy.name: remedy for remedy in remedies}
    best = next((trial for trial in trials if trial.helped and trial.name in by_name), None)
    if best is not None:
        return by_name[best.name], best
    # One that was tried and did not help is no advice where there is another.
    failed = {trial.name: trial for trial in trials if trial.steps}
    unsuitable = {trial.name for trial in trials if not trial.steps}
    fresh = [remedy for remedy in remedies if remedy.name not in failed and remedy.name not in unsuitable]
    chosen = next(iter([*fresh, *(one for one in remedies if one.edit is None)]), remedies[0])
    return chosen, failed.get(chosen.name)


def _proof(trial: Trial | None) -> str:
    if trial is None:
        return "not tried"
    before = "not finite" if trial.loss_before != trial.loss_before else f"{trial.loss_before:.3g}"
    after = "not finite" if trial.loss_after != trial.loss_after else f"{trial.loss_after:.3g}"
    return f"{'proven' if trial.helped else 'tried without success'}: loss {before} -> {after} over {trial.steps} steps"


def diff_of(remedy: Remedy, finding: Finding, found: Examined, *, path: Path) -> str | None:
    """A unified diff of the user's file; ``None`` where the line to change is not found for certain."""
    rewrite = REWRITES.get(remedy.name)
    if rewrite is None or not path.is_file():
        return None
    source = path.read_text(encoding="utf-8")
    new = rewrite(source, finding, found)
    if new is None or new == source:
        return None
    name = path.as_posix().lstrip("/")
    lines = difflib.unified_diff(
        source.splitlines(keepends=True), new.splitlines(keepends=True), f"a/{name}", f"b/{name}"
    )
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
