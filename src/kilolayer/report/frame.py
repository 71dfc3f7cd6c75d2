"""One frame of a run that is followed in a terminal: its state, the verdict so far, its scalars, its depth."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from kilolayer.recording import Recording
from kilolayer.report.follow import Glance, State
from kilolayer.report.grid import run_series
from kilolayer.report.screen import run_verdict, trials_line
from kilolayer.report.sparkline import sparkline
from kilolayer.report.table import SplitTable, render_table
from kilolayer.report.terminal import render_depth
from kilolayer.report.text import format_number, inert
from kilolayer.report.thin import on_log_scale
from kilolayer.report.view import RunView

STATE_STYLES: dict[State, str] = {
    "waiting": "cyan", "running": "green", "silent": "yellow", "died": "bold red", "finished": "bold",
}  # fmt: skip

EXPLAINED = {
    "waiting": "no recording there yet",
    "died": "the process that wrote it is gone; this is what it had saved",
    "silent": "nothing was saved for some time",
}
"""States that need a word."""

FIRST_SCALARS = ("loss", "lr", "grad_norm")
MAX_SCALARS = 8
SPARKLINE_WIDTH = 32


def render_frame(glance: Glance) -> Group:
    """A run as it is now, for a terminal of any width.

    Examples:
        >>> from pathlib import Path
        >>> from kilolayer.report.table import to_text
        >>> to_text(render_frame(Glance(Path("runs/a"), "waiting")))
        'runs/a  waiting: no recording there yet\\n'
    """
    return Group(*_parts(glance))


def status_line(glance: Glance) -> str:
    """The folder and how its run stands: ``runs/a  running, step 4,210, saved 8 s ago``."""
    return f"{inert(glance.folder, limit=60)}  {glance.state}{_said(glance)}"


def _parts(glance: Glance) -> Iterator[RenderableType]:
    status = Text(status_line(glance), style="bold")
    status.highlight_words([glance.state], style=STATE_STYLES[glance.state])
    yield status
    view = glance.view
    if view is None:
        return
    yield Text(_so_far(view)) if _is_open(view, glance) else run_verdict(view)
    if view.trials:
        yield Text(trials_line(view.trials))
    yield Text("")
    yield render_scalars(view.recording)
    yield Text("")
    yield render_depth(view)


def _said(glance: Glance) -> str:
    said = [EXPLAINED[glance.state]] if glance.state in EXPLAINED else []
    if glance.view is not None:
        steps = glance.view.recording.steps()
        said.append(f"step {steps[-1]:,}" if len(steps) else "no step yet")
    if glance.age_s is not None and glance.state != "finished":
        said.append(f"saved {_ago(glance.age_s)} ago")
    opening = ": " if glance.state in EXPLAINED else ", "
    return opening + ", ".join(said) if said else ""


def _ago(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _is_open(view: RunView, glance: Glance) -> bool:
    """Whether it is too early for a verdict: no cause was found in a run that goes on."""
    return view.root is None and not glance.has_ended


def _so_far(view: RunView) -> str:
    return "No cause of trouble found so far." if view.was_examined else "No row was saved so far."


def render_scalars(recording: Recording) -> SplitTable:
    """Every scalar of the run as a sparkline, with its first and its last value; the loss comes first."""
    rows = []
    for name in sorted(recording.stats("run"), key=_rank)[:MAX_SCALARS]:
        _, values = run_series(recording, name)
        positive = bool((values[np.isfinite(values)] > 0).all())
        scaled = on_log_scale(values) if positive else np.where(np.isfinite(values), values, np.inf)
        line = sparkline(scaled, width=SPARKLINE_WIDTH, min_span=0.1 if positive else 1e-12)
        rows.append([inert(name, limit=24), line, format_number(values[0]), format_number(values[-1])])
    return render_table(["scalar", "over the steps", "first", "last"], rows)


def _rank(name: str) -> tuple[int, str]:
    return (FIRST_SCALARS.index(name) if name in FIRST_SCALARS else len(FIRST_SCALARS), name)
