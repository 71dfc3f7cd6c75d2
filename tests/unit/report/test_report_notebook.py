"""Objects in a notebook: well-formed, small, inert; the live view, with a notebook that is not there."""

import sys
import time
import types
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from report_runs import HOSTILE, empty, exploding, finding, healthy, hostile, recording, vanishing
from torch import nn

import kilolayer as kl
from kilolayer.convert import plan_conversion
from kilolayer.diagnosis import Diagnosis, diagnose
from kilolayer.init import InitPlan
from kilolayer.init.plan import InitRow
from kilolayer.recording import RecordingWriter
from kilolayer.report import LiveView, RunFollower
from kilolayer.report.fragment import Html, frame, preformatted, svg_sparkline, table
from kilolayer.report.notebook import SHOWN, show_html
from kilolayer.report.text import to_html
from kilolayer.schemes.coefficients import coefficients

VOID = {"rect", "circle", "polyline"}
KNOWN = {"div", "b", "table", "tr", "th", "td", "svg", "rect", "circle", "polyline", "pre"}


class Piece(HTMLParser):
    """Reads a piece strictly: known elements, closed in order, nothing that acts."""

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.texts = [], [], []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        assert tag in KNOWN
        assert not [name for name, _ in attributes if name.startswith("on") or name in ("href", "src")]
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        assert tag in VOID
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    @property
    def text(self):
        return " ".join(self.texts)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x):
        return x + torch.relu(self.linear(self.norm(x)))


def structure():
    return kl.read_structure(nn.Sequential(*(Block() for _ in range(5)), nn.LayerNorm(8)), (torch.randn(2, 8),))


def diagnosis():
    return diagnose(exploding().recording)


def conversion_plan():
    return plan_conversion(kl.nn.TransformerEncoder(kl.nn.TransformerEncoderLayer(8, 2, 16), 2), "deepnorm")


OBJECTS = {
    "recording": (
        lambda: healthy().recording,
        ["125 rows", "16 sites", "5 steps", "8 blocks", "Activation RMS", "Loss"],
    ),
    "finding": (
        finding,
        ["error SIG101 init-too-small", "blocks.0:sum to blocks.7:sum", "0.707, predicted 1.00", "sqrt"],
    ),
    "diagnosis": (diagnosis, ["SIG102"]),
    "structure": (structure, ["5 branches", "pre-ln", "1 to 5", "pre (layer)", "relu", "Final norm: layer"]),
    "coefficients": (lambda: coefficients(6, 6), ["encoder", "1.4179", "0.34329", "rule deepnet"]),
    "init plan": (lambda: InitPlan((InitRow("a.weight", "normal", 0.1, "why"),)), ["InitPlan", "a.weight", "why"]),
    "conversion plan": (conversion_plan, ["ConversionPlan", "deepnorm"]),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_objects_show_themselves(name):
    make, words = OBJECTS[name]
    html = make()._repr_html_()
    assert len(html) < 20_000
    text = " ".join(Piece(html).text.split())
    for word in words:
        assert word in text


@pytest.mark.parametrize(
    "run", [healthy(), exploding(), vanishing(), empty(), hostile()], ids=lambda run: run.name[:12]
)
def test_every_kind_of_run_is_well_formed(run):
    for thing in (run, run.recording):
        assert Piece(show_html(thing)).tags


def test_hostile_names_add_no_element():
    bad = finding(**dict.fromkeys(("code", "cause", "formula", "message", "remedy"), HOSTILE), first_site=HOSTILE)
    assert Piece(bad._repr_html_()).tags == Piece(finding()._repr_html_()).tags
    plan = InitPlan((InitRow(HOSTILE, "normal", 0.1, HOSTILE),))
    assert Piece(plan._repr_html_()).tags == ["div", "div", "b", "pre"]
    assert "\x1b" not in plan._repr_html_()


@given(st.text())
def test_no_text_acts(text):
    shown = to_html(text)
    assert not set("<>\"'") & set(shown)
    assert Piece(frame(text, table([text], [[text]]), preformatted(text))).tags == [
        "div", "div", "b", "table", "tr", "th", "tr", "td", "pre",
    ]  # fmt: skip


def test_a_verdict_without_a_cause_and_one_that_could_not_look():
    assert "No finding" in Piece(Diagnosis(None, (), {})._repr_html_()).text
    assert "1 rules had too little" in Piece(Diagnosis(None, (), {"a": "b"})._repr_html_()).text
    failed = Piece(Diagnosis(None, (), {}, unexplained="The loss stays.")._repr_html_()).text
    assert "The loss stays." in failed
    assert "No finding" not in failed


def test_long_things_are_cut():
    plan = InitPlan(tuple(InitRow(f"p{number}", "normal", 0.1, "why") for number in range(100_000)))
    html = plan._repr_html_()
    assert len(html) < 10_000
    assert "and 99960 more lines" in html
    deep = recording(lambda block, step: 1.0 + block % 7, num_blocks=2500, steps=range(2))
    assert len(deep._repr_html_()) < 20_000


def test_what_nobody_can_show_is_an_error():
    with pytest.raises(TypeError, match="a notebook has no form for int; it shows Recording, Finding"):
        show_html(3)


def test_a_subclass_is_shown_as_what_it_is():
    class Mine(kl.Recording):
        pass

    made = healthy().recording
    assert "125 rows" in Mine(made.rows, made.sites)._repr_html_()
    assert set(SHOWN) >= {"Recording", "Finding", "Structure"}


def test_a_sparkline_has_gaps_marks_and_single_points():
    curve = svg_sparkline(np.array([0.0, 1.0, np.nan, 2.0, np.inf, 3.0, 4.0]))
    piece = Piece(curve)
    assert piece.tags.count("polyline") == 2
    assert piece.tags.count("circle") == 1
    assert piece.tags.count("rect") == 1
    assert Piece(svg_sparkline(np.zeros(0))).tags == ["svg"]
    assert "nan" not in svg_sparkline(np.array([np.nan, np.inf]))
    assert isinstance(curve, Html)


def test_a_long_sparkline_keeps_its_extremes():
    values = np.zeros(100_000)
    values[54_321] = 9.0
    html = svg_sparkline(values)
    assert len(html) < 5_000
    assert ",2.0 " in html


# ------------------------------------------------------------------ the live view
@pytest.fixture
def notebook(monkeypatch):
    """An IPython that keeps what it is asked to show."""
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
    return types.SimpleNamespace(shown=shown, module=module)


def test_the_view_changes_while_the_run_goes_on(tmp_path, notebook):
    with LiveView(tmp_path / "run", every_s=0.01):
        writer = RecordingWriter(tmp_path / "run")
        for step in range(2):
            writer.add(step, "run", "run", "loss", 2.0)
            writer.flush()
            writer.wait()
            wait_for(lambda step=step: f"{step + 1} rows" in notebook.shown[-1], notebook)
        writer.close()
    assert "waiting" in notebook.shown[0]
    assert any("running" in one for one in notebook.shown)
    assert "finished" in notebook.shown[-1]


def wait_for(is_true, notebook):
    for _ in range(500):
        if is_true():
            return
        time.sleep(0.01)
    raise AssertionError(notebook.shown[-1])


def test_leaving_shows_the_last_state_even_when_it_never_looked_before(tmp_path, notebook):
    with LiveView(tmp_path / "run", every_s=1000):
        healthy().recording.save(tmp_path / "run")
    assert "125 rows" in notebook.shown[-1]


def test_a_damaged_file_is_told_and_does_not_stop_the_training(tmp_path, notebook):
    with LiveView(tmp_path / "run", every_s=1000):
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "recording.json").write_text("{")
    assert "is damaged" in notebook.shown[-1]


def test_outside_a_notebook_it_says_what_to_use(tmp_path, notebook, monkeypatch):
    view = LiveView("runs/a")
    notebook.module.get_ipython = lambda: None
    with pytest.raises(RuntimeError, match="in a terminal, kilolayer watch runs/a"):
        view.start()
    monkeypatch.setitem(sys.modules, "IPython", None)
    with pytest.raises(ImportError, match="needs a notebook"):
        view.start()
    assert "waiting" in view._repr_html_()


def test_a_view_is_started_once_and_looks_at_sensible_times(tmp_path, notebook):
    view = LiveView(tmp_path / "run").start()
    with pytest.raises(RuntimeError, match="already started"):
        view.start()
    view.stop()
    with pytest.raises(ValueError, match="every_s must be > 0, got -1"):
        LiveView("a", every_s=-1)


def test_a_glance_shows_itself(tmp_path):
    healthy().recording.save(tmp_path / "run")
    assert "finished, step 4" in show_html(RunFollower(tmp_path / "run").look())
