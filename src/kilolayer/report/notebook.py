"""What the library's objects look like in a notebook: small, quick, readable by day and by night.

Objects are told apart by the names of their classes: some live in rooms that know torch, which this one does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from kilolayer.diagnosis import Diagnosis, Finding
from kilolayer.recording import Recording
from kilolayer.report.facts import structure_sentence
from kilolayer.report.follow import Glance
from kilolayer.report.fragment import SEVERITY_COLORS, Html, frame, line, preformatted, svg_sparkline, table
from kilolayer.report.frame import status_line
from kilolayer.report.grid import GridReader, run_series
from kilolayer.report.quantity import QUANTITIES
from kilolayer.report.screen import trial_text
from kilolayer.report.sentence import examined
from kilolayer.report.text import format_number, format_range, format_sites
from kilolayer.report.thin import on_log_scale
from kilolayer.report.trial import TrialView
from kilolayer.report.view import RunView

MAX_LINES = 40
"""Rows and lines shown of something long."""


def show_html(thing: object) -> str:
    """An object as HTML.

    Raises:
        TypeError: nobody said how to show it.

    Examples:
        >>> from kilolayer.recording import RecordingWriter
        >>> "0 rows" in show_html(RecordingWriter().close())
        True
    """
    for kind in type(thing).__mro__:
        if kind.__name__ in SHOWN:
            return str(SHOWN[kind.__name__](thing))
    raise TypeError(f"a notebook has no form for {type(thing).__name__}; it shows {', '.join(SHOWN)}")


def recording_html(recording: Recording) -> Html:
    """A recording: how much it holds, what the model is, and its curves at the first and the last step."""
    counts = f"{len(recording):,} rows, {len(recording.sites):,} sites, {len(recording.steps()):,} steps"
    rows = _loss_rows(recording) + _depth_rows(recording)
    curves = [table(["quantity", "when", "curve", "low to high"], rows)] if rows else []
    return frame(f"Recording: {counts}", line(structure_sentence(recording)), *curves)


def _loss_rows(recording: Recording) -> list[list[Any]]:
    steps, losses = run_series(recording, "loss")
    if not len(steps):
        return []
    curve = svg_sparkline(on_log_scale(losses), min_span=0.1)
    return [["Loss", f"steps {steps[0]} to {steps[-1]}", curve, _reach(losses)]]


def _depth_rows(recording: Recording) -> list[list[Any]]:
    rows: list[list[Any]] = []
    reader = GridReader(recording)
    for quantity in QUANTITIES:
        grid = reader.read(quantity)
        if grid is None:
            continue
        for index in sorted({0, len(grid.steps) - 1}):
            curve = svg_sparkline(grid.scaled[index], grid.nonfinite[index])
            rows.append(
                [quantity.title, f"along the depth, step {grid.steps[index]}", curve, _reach(grid.values[index])]
            )
    return rows


def _reach(values: np.ndarray) -> str:
    finite = values[np.isfinite(values)]
    return format_range(finite.min(), finite.max()) if len(finite) else "no finite value"


def finding_html(finding: Finding) -> Html:
    """A finding: what, where, measured beside predicted, rivals, remedy."""
    sites = format_sites(finding.first_site, finding.last_site)
    rows: list[list[Any]] = [["Where", sites]] if sites else []
    if finding.measured is not None:
        expected = "" if finding.predicted is None else f", predicted {format_number(finding.predicted)}"
        rows.append(["Measured", f"{format_number(finding.measured)}{expected}"])
    rows += [["Quantity", finding.formula]] if finding.formula else []
    rows += [["Not", f"{rival.cause} ({rival.ruled_out_by})"] for rival in finding.rivals]
    rows += [["Remedy", finding.remedy]] if finding.remedy else []
    rows += [["Explains", f"{one.code} {one.cause}"] for one in finding.consequences]
    title = f"{finding.severity} {finding.code} {finding.cause}"
    return frame(title, line(finding.message), table([], rows), color=SEVERITY_COLORS[finding.severity])


def diagnosis_html(diagnosis: Diagnosis) -> Html:
    """A verdict: the root finding, or that there is none, and the remedies that were tried."""
    trials = [TrialView.from_dict(one.to_dict()) for one in getattr(diagnosis, "trials", ())]
    tried = [line(f"Tried: {', '.join(map(trial_text, trials))}")] if trials else []
    if diagnosis.root is not None:
        return Html(finding_html(diagnosis.root) + "".join(tried))
    if diagnosis.unexplained:
        return frame("warning", line(diagnosis.unexplained), *tried, color=SEVERITY_COLORS["warning"])
    open_rules = len(diagnosis.not_evaluated)
    doubt = [line(f"{open_rules} rules had too little to go by.")] if open_rules else []
    return frame("No finding", *doubt, *tried)


def structure_html(structure: Any) -> Html:
    """A structure: its scheme, and its branches with equal neighbors in one row."""
    scheme = structure.scheme or "no scheme of the registry"
    title = f"Structure: {len(structure.branches)} branches, {scheme}"
    groups = [(kind, [branch.index + 1 for branch in same]) for kind, same in groupby(structure.branches, _branch)]
    rows = [[_span(numbers), *kind] for kind, numbers in groups[:MAX_LINES]]
    header = ["branches", "norms", "skip scale", "branch scale", "inside"]
    more = [line(f"and {len(groups) - MAX_LINES} more rows")] if len(groups) > MAX_LINES else []
    notes = [line(f"Final norm: {structure.final_norm or 'none'}")]
    if structure.opaque:
        notes.append(line(f"Could not see into: {', '.join(structure.opaque)}"))
    return frame(title, *notes, table(header, rows), *more)


def _branch(branch: Any) -> tuple[str, ...]:
    kind = f" ({branch.norm_kind})" if branch.norm_kind else ""
    inside = [*([f"{branch.attention} attention"] if branch.attention else []), *branch.activations]
    scales = [one if isinstance(one, str) else format_number(one) for one in (branch.skip_scale, branch.branch_scale)]
    return (f"{branch.norm_placement}{kind}", *scales, ", ".join(inside))


def _span(numbers: Sequence[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


def coefficients_html(found: Any) -> Html:
    """Coefficients: skip scale, init gain and update sum of every stack."""
    rows = []
    for stack in ("encoder", "decoder"):
        one = getattr(found, stack)
        if one is not None:
            numbers = [one.skip_scale, one.init_gain, getattr(found.update_sum, stack)]
            rows.append([stack, one.num_layers, one.num_branches, *(format_number(n, digits=5) for n in numbers)])
    header = ["stack", "layers", "branches", "skip scale", "init gain", "update sum"]
    return frame(f"Coefficients, rule {found.rule}", table(header, rows))


def plan_html(plan: Any) -> Html:
    """A plan: the lines of its text."""
    lines = plan.render().split("\n")
    shown = lines[:MAX_LINES] + ([f"... and {len(lines) - MAX_LINES} more lines"] if len(lines) > MAX_LINES else [])
    return frame(type(plan).__name__, preformatted("\n".join(shown)))


def run_html(run: RunView) -> Html:
    """A run: its verdict and its recording."""
    if run.root is not None:
        verdict = finding_html(run.root)
    elif not run.was_examined:
        verdict = line("Not evaluated: the recording holds no rows.")
    else:
        said = f"Nothing stands out in {examined(run)}." if run.looks_healthy else f"No cause found, yet {run.doubt}."
        verdict = line(said)
    return frame(run.name, verdict, recording_html(run.recording))


def glance_html(glance: Glance) -> Html:
    """A run as it is at one moment."""
    status = line(status_line(glance))
    if glance.view is None:
        return status
    if glance.view.root is None and not glance.has_ended:
        return Html(status + line("No cause of trouble found so far.") + recording_html(glance.view.recording))
    return Html(status + run_html(glance.view))


SHOWN: dict[str, Callable[[Any], Html]] = {
    "Recording": recording_html,
    "Finding": finding_html,
    "Diagnosis": diagnosis_html,
    "Structure": structure_html,
    "Coefficients": coefficients_html,
    "InitPlan": plan_html,
    "ConversionPlan": plan_html,
    "RunView": run_html,
    "Glance": glance_html,
}
"""Name of a class -> what shows its objects."""
