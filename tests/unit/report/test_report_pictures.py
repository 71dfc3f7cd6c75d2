from dataclasses import replace

import numpy as np
import pytest
from report_runs import empty, healthy, vanishing

from kilolayer.report import TrialView
from kilolayer.report.numbers import MAX_EVIDENCE, evidence_table
from kilolayer.report.panel import Names
from kilolayer.report.pictures import MAX_CURVES, MAX_DRAWN_TRIALS, structure_group, trials_group

CURVES = {"before": [2.3, 2.3, 2.3], "after": [2.3, np.nan, 0.1]}


def tried(number=1, **options):
    trial = TrialView("deepnorm", 2.3, 0.1, True, CURVES)
    return replace(vanishing(**options), trials=(trial,) * number)


def test_every_run_has_a_strip_or_says_so():
    panels = []
    group = structure_group([healthy(), empty()], names=Names(), panels=panels)
    assert [picture.panel for picture in group.pictures] == [0, None]
    assert "not recorded" in group.pictures[1].words
    assert len(panels) == 1


def test_trials_share_one_axis_and_say_whose_they_are():
    panels = []
    group = trials_group([tried(name="a"), healthy(), tried(2, name="b")], panels)
    assert [picture.run for picture in group.pictures] == ["a: deepnorm", "b: deepnorm", "b: deepnorm"]
    assert len({tuple(panel["y_range"]) for panel in panels}) == 1
    assert group.pictures[0].words == "Loss: deepnorm 2.30 -> 0.100 (helped)."


def test_a_curve_has_a_gap_where_the_loss_was_not_finite():
    panels = []
    trials_group([tried()], panels)
    after = panels[0]["curves"][1]
    assert after["x"] == [0, 1, 2]
    assert after["y"][1] is None
    assert after["y"][2] < after["y"][0]


@pytest.mark.parametrize("curves", [{}, {"before": []}])
def test_a_trial_without_curves_is_told_but_not_drawn(curves):
    run = replace(vanishing(), trials=(TrialView("deepnorm", 2.3, 0.1, True, curves),))
    panels = []
    assert trials_group([run], panels).pictures == ()
    assert panels == []


def test_long_and_many_curves_are_cut():
    long = TrialView("a", 1.0, 1.0, None, {str(number): np.arange(1.0, 5000) for number in range(9)})
    panels = []
    trials_group([replace(vanishing(), trials=(long,) * (MAX_DRAWN_TRIALS + 5))], panels)
    assert len(panels) == MAX_DRAWN_TRIALS
    assert len(panels[0]["curves"]) == MAX_CURVES
    assert all(len(curve["x"]) <= 500 and curve["x"][-1] == 4998 for curve in panels[0]["curves"])


def test_a_panel_of_one_step_has_a_tick():
    panels = []
    trials_group([replace(vanishing(), trials=(TrialView("a", 1.0, 1.0, None, {"before": [1.0]}),))], panels)
    assert panels[0]["x_ticks"] == [0]


def test_evidence_is_a_table_of_all_its_names():
    table = evidence_table([{"step": 0, "value": 1.5}, {"site": "a\x1b[1m", "value": None}])
    assert table.header == ("step", "value", "site")
    assert table.rows == (("0", "1.50", "-"), ("-", "-", "a\\x1b[1m"))
    assert evidence_table(()) is None
    assert len(evidence_table([{"step": 0}] * 1000).rows) == MAX_EVIDENCE
