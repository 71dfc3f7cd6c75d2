"""The notebook runs from top to bottom, its objects show themselves, and it says what comes of it."""

import ast
import contextlib
import io
import json
import re
import sys
import types
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"
CELLS = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]


@pytest.fixture
def frames(monkeypatch):
    """What a live view shows, one HTML text a frame."""
    shown = []

    class Handle:
        def update(self, html):
            shown.append(html)

    def display(html, *, display_id):
        assert display_id
        shown.append(html)
        return Handle()

    module = types.ModuleType("IPython")
    module.display = types.SimpleNamespace(display=display, HTML=str)
    module.get_ipython = lambda: object()
    monkeypatch.setitem(sys.modules, "IPython", module)
    return shown


def run(source, names):
    """A cell as a notebook runs it: the value of its last expression, and what it printed."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, NOTEBOOK.name, "exec"), names)
        value = None if last is None else eval(compile(ast.Expression(last.value), NOTEBOOK.name, "eval"), names)
    return value, printed.getvalue()


def test_it_runs_and_shows(frames):
    names = {"__name__": "__main__"}
    results = [run("".join(cell["source"]), names) for cell in CELLS if cell["cell_type"] == "code"]
    shown = [value._repr_html_() for value, _ in results if value is not None]
    assert len(shown) == 4
    assert any("post-norm-too-deep" in html for html in shown)
    assert "loss" in frames[-1].lower()
    before, after = map(float, re.search(r"post-norm ([\d.]+), DeepNorm ([\d.]+)", results[-1][1]).groups())
    assert after < before / 2


def test_it_is_committed_without_outputs():
    codes = [cell for cell in CELLS if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in codes)
    assert len({cell["id"] for cell in CELLS}) == len(CELLS)
