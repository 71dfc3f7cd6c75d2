"""The whole report in a terminal: 80 columns, without color, piped."""

from dataclasses import replace

import numpy as np
import pytest
from report_runs import empty, exploding, healthy, hostile, vanishing

from kilolayer.report import TrialView, render_screen, to_text
from kilolayer.report.screen import loss_line, trials_line
from kilolayer.report.thin import on_log_scale

TRIALS = (
    TrialView("deepnorm", 3.42, 0.02, True),
    TrialView("warm-up", 3.42, 3.4, False),
    TrialView("clip", None, None, note="not made: no norm"),
)


def shown(*runs, width=80, **options):
    return to_text(render_screen(runs, title="report", sentence="One sentence.", **options), width=width)


def test_sentence_verdict_trials_loss_and_depth_in_this_order():
    text = shown(replace(vanishing(), trials=TRIALS))
    wanted = ["report: One sentence.", "plain-naive", "SIG101", "Remedy", "Tried: deepnorm 3.42 -> 0.0200 (helped)"]
    wanted += ["loss ", "quantity", "Activation RMS"]
    places = [text.index(said) for said in wanted]
    assert places == sorted(places)


def test_a_run_that_got_worse_in_no_way_is_called_fine():
    assert "ok  Nothing stands out in 8 blocks over 5 steps." in shown(healthy())
    assert "No cause found, yet the outcome is stuck." in shown(replace(healthy(), summary={"outcome": "stuck"}))
    assert "not evaluated" in shown(empty())


def test_several_runs_get_a_table_and_brief_stops_there():
    runs = healthy("a"), exploding("b")
    assert "quantity" in shown(*runs)
    brief = shown(*runs, brief=True)
    assert "norm-missing" in brief
    assert "quantity" not in brief


@pytest.mark.parametrize("width", [40, 80, 120])
def test_no_line_is_wider_than_the_terminal(width):
    for run in (healthy(), exploding(), hostile()):
        assert max(map(len, shown(run, width=width).splitlines())) <= width


def test_nothing_hostile_reaches_the_terminal():
    text = shown(hostile(), hostile())
    assert all(character.isprintable() or character == "\n" for character in text)


def test_trials_say_what_came_of_them():
    assert trials_line(TRIALS) == (
        "Tried: deepnorm 3.42 -> 0.0200 (helped), warm-up 3.42 -> 3.40 (no help), clip non-finite -> non-finite (not made: no norm)"
    )


def test_a_loss_that_breaks_shows_where():
    line = loss_line(exploding())
    assert line.startswith("loss ")
    assert "x" in line
    assert line.endswith("10.0 at step 0, NaN at step 4")
    assert loss_line(healthy(steps=range(1))).endswith("2.30 at step 0")
    assert loss_line(empty()) == ""


def test_log_scale_keeps_apart_what_is_missing_and_what_is_not_finite():
    scaled = on_log_scale(np.array([100.0, 0.0, -1.0, np.nan, np.inf]))
    np.testing.assert_array_equal(scaled, [2.0, np.nan, np.nan, np.inf, np.inf])
