import numpy as np
import pytest

from kilolayer.report import TrialView, to_plain


def test_a_trial_survives_its_json():
    trial = TrialView("deepnorm", 3.4, None, False, {"before": [3.4, 3.4], "after": [3.4, np.inf]}, "a note")
    again = TrialView.from_dict(to_plain(trial.to_dict()))
    assert (again.name, again.loss_before, again.loss_after, again.helped, again.note) == (
        "deepnorm",
        3.4,
        None,
        False,
        "a note",
    )
    np.testing.assert_array_equal(again.curves["after"], [3.4, np.nan])


def test_what_nobody_judged_stays_open():
    assert TrialView.from_dict({"name": "a", "more": 1}).helped is None


def test_a_curve_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"'before' of a trial has shape \(1, 1\)"):
        TrialView("a", 1.0, 1.0, True, {"before": [[1.0]]})
