"""What a renderer is handed."""

import numpy as np
import pytest
from report_runs import empty, exploding, finding, healthy, recording

from kilolayer.report import Prediction, RunView


def test_a_prediction_becomes_arrays_and_answers_by_site():
    prediction = Prediction("activation", "rms", ["a", "b"], [1, 2], low=[0.5, 1], high=[2, 4])
    assert prediction.sites == ("a", "b")
    assert prediction.value.dtype == np.float64
    assert prediction.at("b") == 2.0
    assert prediction.at("c") is None


@pytest.mark.parametrize("changes", [{"value": [1.0]}, {"low": [1.0], "high": [1, 2]}, {"value": [[1.0, 2.0]]}])
def test_a_prediction_needs_one_number_per_site(changes):
    fields = {"value": [1, 2], "low": [1, 2], "high": [1, 2], **changes}
    with pytest.raises(ValueError, match="one number per site, 2"):
        Prediction("activation", "rms", ("a", "b"), **fields)


def test_half_a_band_is_refused():
    with pytest.raises(ValueError, match="low and high"):
        Prediction("activation", "rms", ("a",), [1.0], low=[0.5])


def test_an_empty_recording_is_not_a_healthy_one():
    assert not empty().was_examined
    assert healthy().was_examined
    assert RunView("judged", empty().recording, root=finding()).was_examined


def test_a_run_without_finding_that_does_not_train_does_not_look_healthy():
    made = healthy().recording
    assert RunView("run", made).looks_healthy
    assert RunView("run", made, summary={"outcome": "trains"}).looks_healthy
    assert not RunView("run", made, summary={"outcome": "stuck"}).looks_healthy
    assert not RunView("run", made, finding()).looks_healthy
    assert not empty().looks_healthy


def test_other_findings_are_neither_the_root_nor_its_consequences():
    folded, other = finding(code="SIG103"), finding(code="UPD301")
    root = finding().with_consequences((folded,))
    run = RunView("run", empty().recording, root, [root, folded, other])
    assert run.other_findings == (other,)
    assert RunView("run", empty().recording, None, (other,)).other_findings == (other,)


def test_predictions_are_found_by_role_and_stat():
    run = healthy()
    assert run.prediction("activation", "rms") is run.predictions[0]
    assert run.prediction("activation", "std") is None
    assert exploding().prediction("activation", "rms") is None


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite_leave_a_doubt_however_the_loss_went(bad):
    made = recording(lambda block, step: bad if step >= 3 and block == 5 else 1.0, loss=lambda step: 2.3 / (1 + step))
    run = RunView("run", made)
    assert run.doubt == "values along the depth are not finite from step 3 on"
    assert not run.looks_healthy


def test_rows_that_are_missing_leave_no_doubt():
    made = recording(lambda block, step: None if step == 2 else 1.0, loss=lambda step: 2.3 / (1 + step))
    assert RunView("run", made).looks_healthy
