"""Loss curves share one axis."""

import numpy as np
import pytest
from report_runs import empty, exploding, healthy, recording

from kilolayer.recording import RecordingWriter, Site
from kilolayer.report.loss import MAX_DECADES, MAX_MARKS, MAX_SPIKES, LossAxis, loss_panel
from kilolayer.report.page import loss_words
from kilolayer.report.view import RunView


def run(loss, **options):
    return RunView("run", recording(lambda block, step: 1.0, loss=loss, num_blocks=1, **options))


def test_ordinary_losses_get_a_linear_axis_from_zero():
    axis = LossAxis.of_runs([run(lambda step: 2.3 - 0.1 * step), run(lambda step: 2.3)])
    assert not axis.log
    assert axis.low < 0 < 2.3 < axis.high < 3
    assert axis.ticks()[1][0] == "0"


def test_losses_over_decades_get_a_log_axis():
    axis = LossAxis.of_runs([run(lambda step: 10.0**-step)])
    assert axis.log
    np.testing.assert_allclose(axis.place(np.array([1.0, 0.01])), [0, -2])


def test_an_exploding_loss_does_not_flatten_the_others():
    axis = LossAxis.of_runs([run(lambda step: 1.0), run(lambda step: 1e30 if step else 2.3)])
    assert axis.high - axis.low <= 1.2 * MAX_DECADES


def test_losses_above_the_axis_are_marked_with_the_first_and_the_last():
    broken = run(lambda step: 0.01 if step < 10 else 10.0**step, steps=range(30))
    axis = LossAxis.of_runs([broken])
    panel = loss_panel(broken, axis, nonfinite_step=None, limit=100)
    marked = panel["above"]["x"]
    assert marked[0] == 10
    assert marked[-1] == 29
    assert len(marked) <= MAX_MARKS
    np.testing.assert_allclose(panel["above"]["y"], marked)
    calm = run(lambda step: 2.3)
    assert loss_panel(calm, axis, nonfinite_step=None, limit=100)["above"] == {"x": [], "y": []}


def test_a_loss_that_is_not_finite_is_not_above_the_axis():
    assert LossAxis.of_runs([run(lambda step: 1.0)]).above(np.array([1.0, np.inf, np.nan])).tolist() == []


def test_negative_losses_are_shown_as_they_are():
    axis = LossAxis.of_runs([run(lambda step: -100.0 * step)])
    assert not axis.log
    assert axis.low < -400
    assert axis.high > 0


@pytest.mark.parametrize("runs", [[], [empty()], [run(lambda step: np.nan)], [run(lambda step: 0.0)]])
def test_an_axis_without_any_span(runs):
    axis = LossAxis.of_runs(runs)
    assert np.isfinite([axis.low, axis.high]).all()
    assert axis.low < axis.high


def test_a_panel_holds_the_curve_and_where_it_broke():
    broken = exploding()
    panel = loss_panel(broken, LossAxis.of_runs([broken]), nonfinite_step=2, limit=100)
    assert panel["x"] == [0, 1, 2, 3, 4]
    assert panel["y"][2:] == [10.0, None, None]
    assert panel["nonfinite_step"] == 2


def test_a_long_curve_is_thinned_with_its_spike():
    spiky = run(lambda step: 50.0 if step == 777 else 2.0, steps=range(1000))
    panel = loss_panel(spiky, LossAxis.of_runs([spiky]), nonfinite_step=None, limit=100)
    assert len(panel["x"]) <= 100
    assert 777 in panel["x"]


def test_no_loss_no_panel():
    assert loss_panel(empty(), LossAxis.of_runs([healthy()]), nonfinite_step=None, limit=10) is None


def spiking(*jumps, num_steps=60):
    """A run whose gradient norm jumps at the given steps: step -> factor; block 1's matrix is where it comes from."""
    writer = RecordingWriter()
    writer.sites.append(Site("blocks.0.weight", "blocks.0", "weight", 0, block_index=0))
    factors = dict(jumps)
    for step in range(num_steps):
        norm = factors.get(step, 1.0) * (1.0 + 0.01 * (step % 3))
        writer.add(step, "run", "run", "loss", 2.0 - 0.01 * step)
        writer.add(step, "run", "run", "grad_norm", norm)
        writer.add(step, "blocks.0.weight", "param_grad", "l2_norm", norm)
    return RunView("run", writer.close())


def spikes_in(view, limit=100):
    return loss_panel(view, LossAxis.of_runs([view]), nonfinite_step=None, limit=limit)["spikes"]


def test_spikes_are_marked_on_the_curve_with_what_rose_first():
    marks = spikes_in(spiking((30, 9.0), (50, 40.0)))
    assert marks["x"] == [30, 50]
    np.testing.assert_allclose(marks["y"], [1.7, 1.5], atol=1e-3)
    assert all("blocks.0.weight rose first" in text for text in marks["text"])


def test_a_calm_run_has_none():
    assert spikes_in(spiking())["x"] == []
    assert spikes_in(run(lambda step: 2.0))["x"] == []
    assert "spike" not in loss_words(spiking(), None)


def test_what_is_not_finite_is_no_spike_besides():
    assert spikes_in(spiking((30, float("inf"))))["x"] == []


def test_the_largest_spikes_are_kept_and_the_words_count_all():
    apart = 140  # farther than the window that a jump is measured against
    jumps = [(20 + apart * number, 10.0 + number) for number in range(MAX_SPIKES + 5)]
    view = spiking(*jumps, num_steps=apart * (len(jumps) + 1))
    marked = spikes_in(view)["x"]
    assert len(view.spikes) == len(jumps)
    assert marked == [step for step, _ in jumps[-MAX_SPIKES:]]
    assert f"{len(jumps)} spikes, the largest at step {jumps[-1][0]}" in loss_words(view, None)


def test_one_spike_is_told_in_words():
    assert "1 spike at step 30: gradient norm 9" in loss_words(spiking((30, 9.0)), None)
