"""A report as Markdown: for an issue, a pull request or a chat, where pictures cannot go."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kilolayer.diagnosis.finding import Finding
from kilolayer.report.facts import flatten, shared_and_differing, structure_sentence, summary_labels
from kilolayer.report.grid import GridReader
from kilolayer.report.numbers import number_table
from kilolayer.report.quantity import quantities_of
from kilolayer.report.screen import trial_text
from kilolayer.report.text import NOT_RECORDED, format_number, format_sites, format_value, inert
from kilolayer.report.view import RunView

_ACTIVE = re.compile(
    r"[\\`*_{}\[\]|~$@#!]"  # markup, tables, formulas, mentions, references
    r"|:(?=//|[\w+-]+:)"  # addresses and :emoji:
    r"|(?<=www)\."
    r"|^[-+=:]|(?:(?<=^\d)|(?<=^\d\d))[.)](?=\s|$)",  # lists and underlines, at the start only
    re.IGNORECASE,
)
_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def to_markdown(text: Any, *, limit: int | None = None) -> str:
    r"""Untrusted text that Markdown shows as it is: no markup, no HTML, no link, no mention, no formula.

    Args:
        text: anything; ``str()`` of it is shown.
        limit: longest text in characters before escaping.

    Examples:
        >>> to_markdown("*bold* <b> @all")
        '\\*bold\\* &lt;b&gt; \\@all'
    """
    shown = _ACTIVE.sub(r"\\\g<0>", inert(text, limit=limit))
    return "".join(_HTML.get(character, character) for character in shown)


def render_markdown(
    runs: Sequence[RunView],
    *,
    title: str,
    sentence: str,
    settings: Mapping[str, Any] | None = None,
    environment: Mapping[str, Any] | None = None,
) -> str:
    """A report as Markdown text; the arguments are those of :func:`kilolayer.report.render_html`.

    Examples:
        >>> print(render_markdown([], title="report", sentence="No run was given"), end="")
        # report
        <BLANKLINE>
        **No run was given**
    """
    blocks = [f"# {to_markdown(title)}", f"**{to_markdown(sentence)}**"]
    if len(runs) > 1:
        blocks.append(_runs(runs))
    for run in runs:
        blocks += _run(run)
    blocks += _set_up(runs, settings or {}, environment or {})
    return "\n\n".join(blocks) + "\n"


def _table(header: Sequence[Any], rows: Sequence[Sequence[Any]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _runs(runs: Sequence[RunView]) -> str:
    labels = summary_labels(runs)
    rows = []
    for run in runs:
        cause = run.root.cause if run.root else ("none" if run.was_examined else "not evaluated")
        said = [format_value(run.summary[label]) if label in run.summary else NOT_RECORDED for label in labels]
        rows.append([to_markdown(cell) for cell in (run.name, *said, cause)])
    return _table([to_markdown(cell) for cell in ("run", *labels, "cause")], rows)


def _run(run: RunView) -> Iterator[str]:
    yield f"## {to_markdown(run.name)}"
    if run.root is not None:
        yield from _finding(run.root)
    elif not run.was_examined:
        yield "Not evaluated: the recording holds no rows."
    else:
        doubt = to_markdown(run.doubt)
        yield "Nothing stands out." if run.looks_healthy else f"No cause found, yet {doubt}."
    others = [*(run.root.consequences if run.root else ()), *run.other_findings]
    if others:
        yield "\n".join(f"- {_headline(one)}: {to_markdown(one.message)}" for one in others)
    if run.trials:
        yield "Tried:\n\n" + "\n".join(f"- {to_markdown(trial_text(trial))}" for trial in run.trials)
    yield to_markdown(structure_sentence(run.recording))
    yield from _numbers(run)


def _headline(finding: Finding) -> str:
    return f"**{to_markdown(finding.severity)} {to_markdown(finding.code)} {to_markdown(finding.cause)}**"


def _finding(finding: Finding) -> Iterator[str]:
    sites = format_sites(finding.first_site, finding.last_site)
    yield f"{_headline(finding)}{f' at {to_markdown(sites)}' if sites else ''}: {to_markdown(finding.message)}"
    said = []
    if finding.measured is not None:
        expected = "" if finding.predicted is None else f", predicted {format_number(finding.predicted)}"
        meaning = f" ({finding.formula})" if finding.formula else ""
        said.append(f"Measured {format_number(finding.measured)}{expected}{meaning}")
    said += [f"Not {rival.cause}: {rival.ruled_out_by}" for rival in finding.rivals]
    said += [f"Remedy: {finding.remedy}"] if finding.remedy else []
    said += [f"Reference: {finding.reference}"] if finding.reference else []
    if said:
        yield "\n".join(f"- {to_markdown(one)}" for one in said)


def _numbers(run: RunView) -> Iterator[str]:
    reader = GridReader(run.recording)
    for quantity in quantities_of([run]):
        grid = reader.read(quantity)
        if grid is None:
            continue
        table = number_table(grid, run.prediction(quantity.role, quantity.stat))
        yield f"### {to_markdown(quantity.title)}"
        yield _table(
            [to_markdown(cell) for cell in table.header],
            [[to_markdown(cell) for cell in row] for row in table.rows],
        )


def _set_up(runs: Sequence[RunView], settings: Mapping[str, Any], environment: Mapping[str, Any]) -> Iterator[str]:
    shared, differing = shared_and_differing(runs)
    rows = [*flatten(settings).items(), *flatten(environment).items(), *shared.items()]
    if not rows and not differing:
        return
    yield "## Set-up"
    if rows:
        yield _table(["what", "value"], [[to_markdown(cell) for cell in row] for row in rows])
    if differing:
        header = ["what", *(to_markdown(run.name) for run in runs)]
        yield _table(header, [[to_markdown(cell) for cell in (name, *texts)] for name, texts in differing.items()])
