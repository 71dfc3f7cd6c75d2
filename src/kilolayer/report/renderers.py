"""Every form a report takes, and writing one to disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kilolayer.report.encode import to_json
from kilolayer.report.files import replace_file
from kilolayer.report.html import render_html
from kilolayer.report.markdown import render_markdown
from kilolayer.report.png import draw_png
from kilolayer.report.screen import render_screen
from kilolayer.report.table import to_text
from kilolayer.report.view import RunView

FORMAT = 1
"""Version of the JSON report."""


@dataclass(frozen=True, eq=False)
class Report:
    """What every form of a report says: runs in order, a short title, the verdict in one sentence, and as
    label -> value what was run (``settings``) and with which versions on which machine (``environment``)."""

    runs: Sequence[RunView]
    title: str
    sentence: str
    environment: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Renderer:
    """One form of a report: what ``--format`` calls it, the suffix of its files, and how it is made."""

    name: str
    suffix: str
    render: Callable[[Report], bytes]


def _html(report: Report) -> bytes:
    return render_html(report.runs, **_said(report)).encode()


def _markdown(report: Report) -> bytes:
    return render_markdown(report.runs, **_said(report)).encode()


def _said(report: Report) -> dict[str, Any]:
    return {
        "title": report.title,
        "sentence": report.sentence,
        "settings": report.settings,
        "environment": report.environment,
    }


def _png(report: Report) -> bytes:
    return draw_png(report.runs, title=f"{report.title}: {report.sentence}")


def _json(report: Report) -> bytes:
    runs = [
        {
            "name": run.name,
            "summary": run.summary,
            "root": run.root,
            "findings": run.findings,
            "not_evaluated": run.not_evaluated,
            "trials": [trial.to_dict() for trial in run.trials],
            "facts": run.recording.facts,
        }
        for run in report.runs
    ]
    return (to_json({"format": FORMAT, **_said(report), "runs": runs}, indent=1) + "\n").encode()


def _text(report: Report) -> bytes:
    return to_text(render_screen(report.runs, title=report.title, sentence=report.sentence)).encode()


RENDERERS = (
    Renderer("html", ".html", _html),
    Renderer("png", ".png", _png),
    Renderer("json", ".json", _json),
    Renderer("md", ".md", _markdown),
    Renderer("text", ".txt", _text),
)


def save_report(report: Report, path: str | Path) -> Path:
    """Write a report in the form that the suffix of ``path`` names; the file appears complete or not at all.

    Args:
        report: what to say.
        path: ``.html``, ``.png``, ``.json``, ``.md`` or ``.txt``; replaced when it exists.

    Returns:
        the path.

    Raises:
        ValueError: no form of a report has this suffix.
        ImportError: the ``report`` extra is not installed and the form needs it.

    Examples:
        >>> import tempfile
        >>> report = Report([], title="lab wirings", sentence="Nothing was run.")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_report(report, f"{folder}/report.json").name
        'report.json'
    """
    path = Path(path)
    renderer = next((one for one in RENDERERS if one.suffix == path.suffix.lower()), None)
    if renderer is None:
        known = ", ".join(one.suffix for one in RENDERERS)
        raise ValueError(f"no report has the suffix {path.suffix!r} ({path}); use one of {known}")
    return replace_file(path, renderer.render(report))
