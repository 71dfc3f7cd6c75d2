"""The verdict on one run, or on several, in one sentence."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kilolayer.report.text import format_number, format_sites
from kilolayer.report.trial import TrialView
from kilolayer.report.view import RunView

MOST_NAMES = 4
"""Runs named for each cause; more are counted."""


def verdict_sentence(runs: Sequence[RunView]) -> str:
    """What a report says on top. Names in it are as they were given: renderers make them inert.

    Examples:
        >>> from kilolayer.recording import RecordingWriter
        >>> verdict_sentence([RunView("a", RecordingWriter().close())])
        'Not evaluated: the recording holds no rows.'
    """
    if not runs:
        return "No run was given."
    return _of_one(runs[0]) if len(runs) == 1 else _of_several(runs)


def examined(run: RunView) -> str:
    """How much was looked at: ``"64 blocks over 300 steps"``."""
    num_blocks, num_steps = len(run.recording.stream()), len(run.recording.steps())
    steps = _counted(num_steps, "step")
    return f"{_counted(num_blocks, 'block')} over {steps}" if num_blocks else steps


def best_trial(trials: Sequence[TrialView]) -> TrialView | None:
    """The remedy that helped and ended at the lowest loss."""
    helped = [one for one in trials if one.helped and one.loss_after is not None]
    return min(helped, key=lambda one: one.loss_after or 0.0, default=None)


def _of_one(run: RunView) -> str:
    if not run.was_examined:
        return "Not evaluated: the recording holds no rows."
    if run.root is None:
        if run.looks_healthy:
            return f"Nothing stands out in {examined(run)}."
        return f"No cause found in {examined(run)}, yet {run.doubt}."
    sites = format_sites(run.root.first_site, run.root.last_site, limit=60)
    where = f" at {sites}" if sites else ""
    said = f"{run.root.cause}{where}: {_first_sentence(run.root.message)}"
    best = best_trial(run.trials)
    if best is not None:
        before, after = format_number(best.loss_before), format_number(best.loss_after)
        said += f" Proven to help: {best.name}, loss from {before} to {after}."
    return said


def _first_sentence(message: str) -> str:
    first = re.split(r"(?<=[.!?])\s+(?=[A-Z])", message.strip(), maxsplit=1)[0]
    return f"{first.rstrip('.')}."


def _of_several(runs: Sequence[RunView]) -> str:
    groups: dict[str, list[str]] = {}
    for run in runs:
        groups.setdefault(_conclusion(run), []).append(run.name)
    parts = [f"{conclusion} in {_listed(names)}" for conclusion, names in groups.items()]
    return f"Of {len(runs)} runs: {'; '.join(parts)}."


def _conclusion(run: RunView) -> str:
    if run.root is not None:
        return run.root.cause
    if not run.was_examined:
        return "nothing evaluated"
    return "nothing stands out" if run.looks_healthy else "no cause found, yet not healthy,"


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:MOST_NAMES])
    return shown if len(names) <= MOST_NAMES else f"{shown} and {len(names) - MOST_NAMES} more"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
