"""A whole report in a terminal: the sentence first, then the runs, each with its verdict, trials and depth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from kilolayer.report.grid import run_series
from kilolayer.report.sentence import examined
from kilolayer.report.sparkline import sparkline
from kilolayer.report.terminal import render_depth, render_runs, render_verdict
from kilolayer.report.text import format_number, inert
from kilolayer.report.thin import on_log_scale
from kilolayer.report.trial import TrialView
from kilolayer.report.view import RunView

LOSS_WIDTH = 40


def render_screen(runs: Sequence[RunView], *, title: str, sentence: str, brief: bool = False) -> Group:
    """A report as Rich shows it: in any width, with or without color.

    Args:
        runs: what to show, in order.
        title: a short name of the whole.
        sentence: the verdict in one sentence.
        brief: the sentence and the table of runs only.

    Examples:
        >>> from kilolayer.report.table import to_text
        >>> to_text(render_screen([], title="report", sentence="No run was given."))
        'report: No run was given.\\n'
    """
    head = Text.assemble((inert(title), "dim"), ": ", (inert(sentence), "bold"))
    parts: list[RenderableType] = [head]
    if len(runs) > 1:
        parts += [Text(""), render_runs(runs)]
    for run in () if brief else runs:
        parts += [Text(""), Text(inert(run.name), style="bold"), *render_run(run)]
    return Group(*parts)


def render_run(run: RunView) -> Iterator[RenderableType]:
    """One run: verdict, remedies that were tried, loss, and what happened along the depth."""
    yield run_verdict(run)
    if run.trials:
        yield Text(f"  {trials_line(run.trials)}")
    loss = loss_line(run)
    if loss:
        yield Text(loss)
    yield render_depth(run)


def run_verdict(run: RunView) -> Text:
    """The verdict on a run as one screen of text."""
    if not run.was_examined:
        return Text("not evaluated: the recording holds no rows")
    if run.root is None and not run.looks_healthy:
        return Text(f"No cause found, yet {inert(run.doubt)}.")
    return render_verdict(run.root, examined="" if run.root else examined(run))


def trials_line(trials: Sequence[TrialView]) -> str:
    """``Tried: deepnorm 3.42 -> 0.02 (helped), warm-up 3.42 -> 3.40 (no help)``."""
    return f"Tried: {', '.join(map(trial_text, trials))}"


def trial_text(trial: TrialView) -> str:
    """One remedy, its loss before and after, and whether it helped."""
    said = {True: "helped", False: "no help", None: ""}[trial.helped]
    remarks = [inert(remark) for remark in (said, trial.note) if remark]
    reach = f"{_loss(trial.loss_before)} -> {_loss(trial.loss_after)}"
    return f"{inert(trial.name)} {reach}" + (f" ({'; '.join(remarks)})" if remarks else "")


def _loss(value: float | None) -> str:
    return "non-finite" if value is None else format_number(value)


def loss_line(run: RunView) -> str:
    """The loss as a sparkline between its first and its last value; empty where none was recorded."""
    steps, losses = run_series(run.recording, "loss")
    if not len(steps):
        return ""
    line = sparkline(on_log_scale(losses), width=LOSS_WIDTH, min_span=0.1)
    ends = f"{format_number(losses[0])} at step {steps[0]}"
    if len(steps) > 1:
        ends += f", {format_number(losses[-1])} at step {steps[-1]}"
    return f"loss {line} {ends}"
