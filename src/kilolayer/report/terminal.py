"""The verdict in a terminal: one screen, the sentence first, in 80 columns, with or without color."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.text import Text

from kilolayer.diagnosis.finding import Finding
from kilolayer.report.facts import summary_labels
from kilolayer.report.grid import Grid, GridReader
from kilolayer.report.lines import predicted_at
from kilolayer.report.quantity import quantities_of
from kilolayer.report.sparkline import sparkline
from kilolayer.report.table import SplitTable, render_table
from kilolayer.report.text import NOT_RECORDED, format_number, format_range, format_sites, inert
from kilolayer.report.view import Prediction, RunView

SEVERITY_STYLES = {"error": "bold red", "warning": "bold yellow", "info": "bold cyan"}

NAME_LIMIT = 60
SPARKLINE_WIDTH = 24


def render_verdict(
    finding: Finding | None,
    *,
    examined: str = "",
    seconds: float | None = None,
    report: str = "",
    explain: bool = False,
    width: int = 80,
) -> Text:
    """A root finding on one screen: the sentence, measured beside predicted, rivals ruled out, remedy.

    Args:
        finding: the root finding; ``None`` for a healthy run, which gets one line.
        examined: what was looked at, such as ``"64 blocks over 300 steps"``.
        seconds: how long that took.
        report: where the report is.
        explain: whether ``kilolayer explain CODE`` exists to point to.
        width: columns to wrap at.

    Returns:
        lines without an end of line after the last; ``.plain`` is the text without styles.

    Examples:
        >>> print(render_verdict(None, examined="64 blocks over 300 steps", seconds=3.2).plain)
        ok  Nothing stands out in 64 blocks over 300 steps (3.20 s).
    """
    if finding is None:
        return _wrapped([_healthy(examined, seconds, report)], width)
    lines = [_headline(finding), Text(inert(finding.message)), Text(_numbers(finding)), Text(_rivals(finding))]
    if finding.remedy:
        lines.append(Text(f"Remedy: {inert(finding.remedy)}"))
    if finding.consequences:
        lines.append(Text(_consequences(finding)))
    pointers = [f"More: kilolayer explain {inert(finding.code)}"] if explain else []
    pointers += [f"Report: {inert(report)}"] if report else []
    lines.append(Text("       ".join(pointers), style="dim"))
    return _wrapped([line for line in lines if line.plain], width)


def _wrapped(paragraphs: Sequence[Text], width: int) -> Text:
    """Paragraphs under each other; every line but the very first is indented by two."""
    console = Console(width=width, color_system=None)
    lines = [line for text in paragraphs for line in text.wrap(console, width - 2, overflow="fold")]
    for line in lines:
        line.rstrip()
    return Text("\n  ").join(lines)


def _healthy(examined: str, seconds: float | None, report: str) -> Text:
    where = f" in {inert(examined)}" if examined else ""
    took = f" ({format_number(seconds)} s)" if seconds is not None else ""
    where_report = f"  Report: {inert(report)}" if report else ""
    return Text.assemble(("ok", "bold green"), f"  Nothing stands out{where}{took}.{where_report}")


def _headline(finding: Finding) -> Text:
    line = Text()
    line.append(finding.severity, style=SEVERITY_STYLES[finding.severity])
    line.append(f" {inert(finding.code)}  ")
    line.append(inert(finding.cause), style="bold")
    sites = format_sites(finding.first_site, finding.last_site, limit=NAME_LIMIT)
    if sites:
        line.append(f"        {sites}", style="dim")
    return line


def _numbers(finding: Finding) -> str:
    """Measured beside predicted, and what the number is."""
    if finding.measured is None:
        return ""
    expected = "" if finding.predicted is None else f", predicted {format_number(finding.predicted)}"
    meaning = f" ({inert(finding.formula)})" if finding.formula else ""
    return f"Measured {format_number(finding.measured)}{expected}{meaning}."


def _rivals(finding: Finding) -> str:
    """``Not lr-too-high (update ratio 3e-3), not inputs-unscaled (RMS 1.0).``"""
    ruled_out = [f"not {inert(rival.cause)} ({inert(rival.ruled_out_by)})" for rival in finding.rivals]
    text = ", ".join(ruled_out)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _consequences(finding: Finding) -> str:
    causes = list(dict.fromkeys(f"{inert(one.code)} {inert(one.cause)}" for one in finding.consequences))
    return f"Explains also: {', '.join(causes)}."


def render_depth(run: RunView) -> SplitTable:
    """What happened along the depth: one line per quantity at the first and the last recorded step.

    Each line holds a sparkline from block 1 to the last, of the middle value in each block (``x``: one is not finite),
    and the lowest and highest value of all sites. What theory predicts for step 0 stands in a line of its own.

    Examples:
        >>> from kilolayer.recording import RecordingWriter
        >>> from kilolayer.report.table import to_text
        >>> "not recorded" in to_text(render_depth(RunView("run", RecordingWriter().close())))
        True
    """
    rows: list[list[str]] = []
    reader = GridReader(run.recording)
    for quantity in quantities_of([run]):
        grid = reader.read(quantity)
        if grid is None:
            rows.append([quantity.title, "-", NOT_RECORDED, "-"])
            continue
        prediction = run.prediction(quantity.role, quantity.stat)
        if prediction is not None:
            rows += _predicted_row(grid, prediction)
        for index in sorted({0, len(grid.steps) - 1}):
            line = _line(grid, grid.scaled[index], grid.nonfinite[index])
            rows.append([quantity.title, f"step {grid.steps[index]}", line, _reach(grid.values[index])])
    return render_table(["quantity", "when", "block 1 to last", "low to high"], rows)


def _predicted_row(grid: Grid, prediction: Prediction) -> list[list[str]]:
    places, arrays = predicted_at(grid, prediction)
    if not len(places):
        return []
    value = arrays["value"]
    scaled = np.full(len(grid.sites), np.nan)
    scaled[places] = value
    reach = _reach(10.0**value if grid.quantity.log else value)
    return [[grid.quantity.title, "theory", _line(grid, scaled, np.zeros(len(scaled), dtype=bool)), reach]]


def _line(grid: Grid, scaled: np.ndarray, nonfinite: np.ndarray) -> str:
    """A sparkline with one value per block: the middle one of its sites, not finite where any is not."""
    numbers = np.array(grid.block_numbers)
    members = [np.flatnonzero(numbers == number) for number in dict.fromkeys(grid.block_numbers)]
    middles = np.array([_middle(scaled[inside]) for inside in members])
    bad = np.array([nonfinite[inside].any() for inside in members], dtype=bool)
    return sparkline(middles, bad, width=SPARKLINE_WIDTH, min_span=1.0 if grid.quantity.log else 0.1)


def _middle(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else float("nan")


def _reach(values: np.ndarray) -> str:
    finite = values[np.isfinite(values)]
    return format_range(finite.min(), finite.max()) if len(finite) else "no finite value"


def render_runs(runs: Sequence[RunView], *, title: str = "") -> SplitTable:
    """One line per run: its summary and the cause of its root finding.

    Examples:
        >>> from kilolayer.recording import RecordingWriter
        >>> from kilolayer.report.table import to_text
        >>> run = RunView("prenorm", RecordingWriter().close(), summary={"loss": 0.31})
        >>> print(to_text(render_runs([run])), end="")
        run       loss  cause
        ─────────────────────────────
        prenorm  0.310  not evaluated
    """
    labels = summary_labels(runs)
    rows = [[run.name, *(run.summary.get(label, NOT_RECORDED) for label in labels), _cause(run)] for run in runs]
    return render_table(["run", *labels, "cause"], rows, title=title)


def _cause(run: RunView) -> str:
    if run.root is not None:
        return run.root.cause
    return "none" if run.was_examined else "not evaluated"
