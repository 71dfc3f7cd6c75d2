"""The HTML report: one file that opens anywhere, without a network."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kilolayer import __version__
from kilolayer.report.encode import to_json
from kilolayer.report.facts import flatten
from kilolayer.report.numbers import evidence_table
from kilolayer.report.page import COLORS, build_page
from kilolayer.report.screen import trial_text
from kilolayer.report.text import format_number, format_sites, format_value, inert
from kilolayer.report.view import RunView

TEMPLATES = Path(__file__).parent / "templates"

MISSING_EXTRA = "the HTML report needs plotly and jinja2: pip install 'kilolayer[report]'"


def render_html(
    runs: Sequence[RunView],
    *,
    title: str,
    sentence: str,
    settings: Mapping[str, Any] | None = None,
    environment: Mapping[str, Any] | None = None,
) -> str:
    """Runs side by side as one self-contained HTML page: no network, no script but its own.

    The verdict sentence stands on top; then a table of the runs, a verdict card for each, remedies that were tried,
    the structure along the depth, heat maps over steps and depth with curves and theory's prediction beside them
    (one color scale per quantity for all runs), loss curves, and the set-up. Large recordings are down-sampled with
    extremes and non-finite values kept.

    Args:
        runs: what to show, in order.
        title: a short name of the whole, such as ``"lab wirings"``.
        sentence: the verdict in one sentence.
        settings: what was run, label -> value.
        environment: versions and machine, label -> value.

    Raises:
        ImportError: the ``report`` extra is not installed.

    Examples:
        >>> page = render_html([], title="lab wirings", sentence="Nothing was run.")
        >>> page.startswith("<!doctype html>")
        True
    """
    try:
        import jinja2
        from markupsafe import Markup
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ImportError(MISSING_EXTRA) from error
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    templates.filters.update(inert=inert, number=format_number, value=format_value)
    page = build_page(runs)
    scripts = [_script_text(get_plotlyjs()), _script_text(_asset("report.js"))]
    return templates.get_template("report.html.j2").render(
        title=inert(title),
        sentence=inert(sentence),
        settings=flatten(settings or {}),
        environment=flatten(environment or {}),
        page=page,
        style=Markup(_asset("report.css")),
        data=Markup(_script_json(page.data)),
        scripts=[Markup(script) for script in scripts],
        script_hashes=[_csp_hash(script) for script in scripts],
        version=__version__,
        colors=COLORS,
        format_sites=format_sites,
        evidence_table=evidence_table,
        trial_text=trial_text,
    )


def _asset(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


def _script_text(script: str) -> str:
    r"""A script that may stand between script tags: ``</script`` can only occur inside its strings, where ``<\/`` is
    the same text. Line ends as a browser reads them, so that the hash is that of what it runs."""
    return script.replace("\r\n", "\n").replace("\r", "\n").replace("</script", "<\\/script")


def _script_json(data: Any) -> str:
    """JSON that no HTML parser can take for markup."""
    text = to_json(data)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _csp_hash(script: str) -> str:
    """The source expression that lets a browser run exactly this script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
