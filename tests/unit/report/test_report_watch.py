"""Frames of a run that is watched, in a terminal and in a pipe."""

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from report_runs import exploding, healthy, hostile, recording, vanishing
from rich.console import Console

from kilolayer.recording import RecordingWriter
from kilolayer.report import Glance, RunView, TrialView, render_frame, to_text, watch_run
from kilolayer.report.frame import MAX_SCALARS

RUN = Path("runs/a")


def shown(state, view=None, *, age_s=None, width=80):
    return to_text(render_frame(Glance(RUN, state, view, age_s)), width=width)


@pytest.mark.parametrize(
    ("state", "view", "age_s", "line"),
    [
        ("waiting", None, None, "runs/a  waiting: no recording there yet"),
        ("running", healthy(), 8.2, "runs/a  running, step 4, saved 8 s ago"),
        ("finished", healthy(), 3e6, "runs/a  finished, step 4"),
        ("silent", healthy(), 7300, "runs/a  silent: nothing was saved for some time, step 4, saved 2 h ago"),
    ],
)
def test_the_first_line_says_how_it_stands(state, view, age_s, line):
    assert shown(state, view, age_s=age_s).splitlines()[0] == line


def test_a_dead_run_says_so_and_shows_what_it_left():
    text = " ".join(shown("died", exploding(), age_s=150).split())
    assert text.startswith(
        "runs/a died: the process that wrote it is gone; this is what it had saved, step 4, saved 2 min ago"
    )
    assert "norm-missing" in text
    assert "Activation RMS" in text


def test_a_run_that_goes_on_is_not_called_healthy_yet_but_a_cause_is_told_at_once():
    assert "No cause of trouble found so far." in shown("running", healthy(), age_s=1)
    assert "ok  Nothing stands out" in shown("finished", healthy())
    assert "SIG101" in shown("running", vanishing(), age_s=1)
    nothing = RunView("a", RecordingWriter().close())
    assert "No row was saved so far." in shown("running", nothing, age_s=1)
    assert "no step yet" in shown("running", nothing, age_s=1)


def test_scalars_are_there_loss_first():
    writer = RecordingWriter()
    for step in range(3):
        for name, value in (
            ("accuracy", 0.0),
            ("zz", -1.0),
            ("grad_norm", np.nan),
            ("lr", 0.1),
            ("loss", 2.0 - step / 2),
        ):
            writer.add(step, "run", "run", name, value)
    text = shown("running", RunView("a", writer.close()), age_s=0)
    names = [line.split()[0] for line in text.splitlines() if line.split()[:1] and line.split()[0] in text]
    assert [name for name in names if name in ("loss", "lr", "grad_norm", "accuracy", "zz")] == [
        "loss", "lr", "grad_norm", "accuracy", "zz",
    ]  # fmt: skip
    assert "xxx" in text
    assert next(line for line in text.splitlines() if line.startswith("loss")).split()[-2:] == ["2.00", "1.00"]


def test_many_scalars_are_cut():
    writer = RecordingWriter()
    for number in range(50):
        writer.add(0, "run", "run", f"metric{number}", 1.0)
    assert shown("running", RunView("a", writer.close()), age_s=0).count("metric") == MAX_SCALARS


def test_trials_are_told():
    view = replace(vanishing(), trials=(TrialView("deepnorm", 2.3, 0.1, True),))
    assert "Tried: deepnorm 2.30 -> 0.100 (helped)" in shown("finished", view)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_hostile_names_fit_and_stay_names(width):
    made = hostile()
    writer = RecordingWriter()
    writer.add(0, "run", "run", made.name, 1.0)
    for view in (made, RunView(made.name, writer.close())):
        text = shown("running", view, age_s=1, width=width)
        assert max(map(len, text.splitlines())) <= width
        assert all(character.isprintable() or character == "\n" for character in text)


def console(*, terminal):
    return Console(file=io.StringIO(), width=80, height=60, force_terminal=terminal, color_system=None)


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
def test_watching_ends_with_the_run(tmp_path, monkeypatch, terminal):
    """Each sleep lets the run go on by a step; at the fourth it closes."""
    writer = RecordingWriter(tmp_path / "run")
    steps = iter(range(4))

    def go_on(seconds):
        step = next(steps)
        if step == 3:
            writer.close()
            return
        writer.add(step, "run", "run", "loss", 2.0)
        writer.flush()
        writer.wait()

    monkeypatch.setattr("kilolayer.report.watch.time.sleep", go_on)
    out = console(terminal=terminal)
    glance = watch_run(tmp_path / "run", out)
    assert glance.state == "finished"
    text = out.file.getvalue()
    for said in ("waiting", "step 0", "step 1", "step 2", "finished, step 2"):
        assert said in text
    assert ("\x1b[" in text) == terminal


def test_a_pipe_gets_no_frame_twice(tmp_path, monkeypatch):
    writer = RecordingWriter(tmp_path / "run")
    writer.add(0, "run", "run", "loss", 2.0)
    writer.flush()
    writer.wait()
    looks = iter(range(5))
    monkeypatch.setattr(
        "kilolayer.report.watch.time.sleep", lambda seconds: writer.close() if next(looks) == 4 else None
    )
    out = console(terminal=False)
    watch_run(tmp_path / "run", out)
    assert out.file.getvalue().count("running") == 1


def test_no_time_between_looks_is_refused(tmp_path):
    recording(lambda block, step: 1.0).save(tmp_path / "run")
    with pytest.raises(ValueError, match="every_s must be > 0, got 0"):
        watch_run(tmp_path / "run", console(terminal=False), every_s=0)
