"""Every renderer of the registry: takes any recording, shows names inert, and is the same twice."""

import numpy as np
import pytest

from kilolayer.diagnosis.finding import Finding
from kilolayer.recording import Recording, RecordingWriter, Site
from kilolayer.report import RENDERERS, Prediction, Report, RunView, save_report

HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e[bold]$x$\r\n{{ 1 }}"


def finding(text="text"):
    return Finding(text, text, "error", 0.5, text, text, float("inf"), float("nan"), text, text, text, text)


def writer_of(*values, name="blocks.0:sum"):
    """One site, one value per step."""
    writer = RecordingWriter()
    writer.sites = [Site(name=name, path=name, kind="sum", order=0, block_index=0, stream=True)]
    for step, value in enumerate(values):
        writer.add(step, name, "activation", "rms", value)
        writer.add(step, "run", "run", "loss", value)
    return writer


def only(role, stat, value):
    writer = RecordingWriter()
    writer.add(3, "somewhere", role, stat, value)
    return writer.close()


RECORDINGS = {
    "empty": RecordingWriter().close(),
    "one value": writer_of(1.0).close(),
    "healthy": writer_of(1.0, 1.1, 1.2).close(),
    "exploding": writer_of(1.0, 1e38, np.inf, np.nan).close(),
    "vanishing": writer_of(1.0, 1e-30, 1e-45, 0.0).close(),
    "all NaN": writer_of(np.nan, np.nan).close(),
    "all zero": writer_of(0.0, 0.0).close(),
    "negative": writer_of(-1.0, -2.0).close(),
    "no site table": Recording(writer_of(1.0, 2.0).close().rows, (), {}),
    "no rows": Recording(RecordingWriter().close().rows, writer_of().sites, {}),
    "only a loss": only("run", "loss", 2.3),
    "only an update": only("update", "update_ratio", 1e-3),
    "only something else": only("param", "max_abs", 1.0),
    "hostile": writer_of(1.0, 2.0, name=HOSTILE).close(),
}

every_renderer = pytest.mark.parametrize("renderer", RENDERERS, ids=lambda one: one.name)
every_recording = pytest.mark.parametrize("name", RECORDINGS)


def render(renderer, *runs, text="text"):
    return renderer.render(Report(runs, text, text, {text: text}))


@every_renderer
@every_recording
def test_any_recording_renders_alone_and_beside_others(renderer, name):
    run = RunView(name, RECORDINGS[name])
    assert render(renderer, run)
    assert render(renderer, run, RunView("other", RECORDINGS["healthy"], finding(), (finding(),), {"loss": None}))


@every_renderer
def test_predictions_for_known_and_unknown_sites_render(renderer):
    predictions = [
        Prediction("activation", "rms", ("blocks.0:sum", "elsewhere"), [1.0, 2.0], [0.5, np.nan], [2.0, np.inf]),
        Prediction("activation", "std", ("blocks.0:sum",), [0.0]),
        Prediction("activation", "sample_cosine", (), []),
        Prediction("param_grad", "l2_norm", ("elsewhere",), [-1.0]),
    ]
    assert render(renderer, RunView("run", RECORDINGS["exploding"], predictions=predictions))


@every_renderer
def test_no_run_renders(renderer):
    assert render(renderer)


@every_renderer
def test_names_are_inert(renderer):
    run = RunView(HOSTILE, RECORDINGS["hostile"], finding(HOSTILE), (finding(HOSTILE),), {HOSTILE: HOSTILE})
    written = render(renderer, run, text=HOSTILE)
    if renderer.name == "png":
        assert written.startswith(b"\x89PNG")
        return
    text = written.decode("utf-8")
    assert "\x1b" not in text
    assert "\u202e" not in text
    if renderer.name == "html":
        assert "<script>alert" not in text


@every_renderer
def test_the_same_runs_give_the_same_bytes(renderer):
    runs = [RunView("a", RECORDINGS["healthy"]), RunView("b", RECORDINGS["exploding"], finding())]
    assert render(renderer, *runs) == render(renderer, *runs)


@every_renderer
def test_a_saved_report_is_what_was_rendered(renderer, tmp_path):
    runs = [RunView("a", RECORDINGS["healthy"])]
    path = save_report(Report(runs, "text", "text", {"text": "text"}), tmp_path / f"report{renderer.suffix}")
    assert path.read_bytes() == render(renderer, *runs)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
