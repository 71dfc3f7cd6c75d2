"""Every form a report takes, and writing one to disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kilolayer.report.encode import to_json
from kilolayer.report.html import render_html
from kilolayer.report.png import draw_png
from kilolayer.report.table import to_text
from kilolayer.report.terminal import render_depth, render_runs, render_verdict
from kilolayer.report.text import inert
from kilolayer.report.view import RunView

Environment = Mapping[str, Any]

FORMAT = 1
"""Version of the JSON report."""


@dataclass(frozen=True)
class Renderer:
    """One form of a report: what ``--format`` calls it, the suffix of its files, and how it is made."""

    name: str
    suffix: str
    render: Callable[[Sequence[RunView], str, str, Environment], bytes]


def _html(runs: Sequence[RunView], title: str, sentence: str, environment: Environment) -> bytes:
    return render_html(runs, title=title, sentence=sentence, environment=environment).encode()


def _png(runs: Sequence[RunView], title: str, sentence: str, environment: Environment) -> bytes:
    return draw_png(runs, title=f"{title}: {sentence}")


def _json(runs: Sequence[RunView], title: str, sentence: str, environment: Environment) -> bytes:
    report = {
        "format": FORMAT,
        "title": title,
        "sentence": sentence,
        "environment": environment,
        "runs": [
            {
                "name": run.name,
                "summary": run.summary,
                "root": run.root,
                "findings": run.findings,
                "facts": run.recording.facts,
            }
            for run in runs
        ],
    }
    return (to_json(report, indent=1) + "\n").encode()


def _text(runs: Sequence[RunView], title: str, sentence: str, environment: Environment) -> bytes:
    parts = [f"{inert(title)}: {inert(sentence)}\n", to_text(render_runs(runs)) if runs else "No run was given.\n"]
    for run in runs:
        verdict = render_verdict(run.root) if run.was_examined else f"{inert(run.name)} was not evaluated."
        parts.append(f"{inert(run.name)}\n{to_text(verdict)}{to_text(render_depth(run))}")
    return "\n".join(parts).encode()


RENDERERS = (
    Renderer("html", ".html", _html),
    Renderer("png", ".png", _png),
    Renderer("json", ".json", _json),
    Renderer("text", ".txt", _text),
)


def save_report(
    runs: Sequence[RunView],
    path: str | Path,
    *,
    title: str,
    sentence: str,
    environment: Environment | None = None,
) -> Path:
    """Write a report in the form that the suffix of ``path`` names; the file appears complete or not at all.

    Args:
        runs: what to show, in order.
        path: ``.html``, ``.png``, ``.json`` or ``.txt``; replaced when it exists.
        title: a short name of the whole.
        sentence: the verdict in one sentence.
        environment: versions and machine, label -> value.

    Returns:
        the path.

    Raises:
        ValueError: no form of a report has this suffix.
        ImportError: the ``report`` extra is not installed and the form needs it.
    """
    path = Path(path)
    renderer = next((one for one in RENDERERS if one.suffix == path.suffix.lower()), None)
    if renderer is None:
        known = ", ".join(one.suffix for one in RENDERERS)
        raise ValueError(f"no report has the suffix {path.suffix!r} ({path}); use one of {known}")
    data = renderer.render(runs, title, sentence, environment or {})
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(data)
    os.replace(temporary, path)
    return path
