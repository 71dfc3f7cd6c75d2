"""The data of a drawing: what the browser decodes is what was recorded."""

import base64
from itertools import pairwise

import numpy as np
import pytest
from report_runs import HOSTILE, exploding, healthy, recording, vanishing

from kilolayer.report.encode import to_json
from kilolayer.report.grid import GridReader
from kilolayer.report.lines import predicted_at, rounded
from kilolayer.report.loss import LossAxis, loss_panel
from kilolayer.report.numbers import cell_text, number_table, prediction_text
from kilolayer.report.panel import Budget, Names, depth_panel, step_bounds
from kilolayer.report.quantity import QUANTITIES
from kilolayer.report.scale import shared_scale
from kilolayer.report.thin import FIRST_CODE
from kilolayer.report.view import Prediction

ACTIVATION, GRADIENT, _ = QUANTITIES


def read(run, quantity=ACTIVATION):
    return GridReader(run.recording).read(quantity)


def panel_of(run, quantity=ACTIVATION, *, names=None, budget=None):
    grid = read(run, quantity)
    prediction = run.prediction(quantity.role, quantity.stat)
    names = Names() if names is None else names
    return depth_panel(grid, prediction, scale=shared_scale([grid]), names=names, budget=budget or Budget.share(3))


def decode(panel):
    """Values on their scale, as report.js computes them: ``(num_rows, num_columns)``."""
    codes = np.frombuffer(base64.b64decode(panel["codes"]), dtype="<u2").astype(float)
    codes = codes.reshape(len(panel["row_sites"]), len(panel["step_spans"]))
    values = panel["low"] + (codes - FIRST_CODE) * (panel["high"] - panel["low"]) / (65_535 - FIRST_CODE)
    return codes, values


def test_cells_decode_to_the_recorded_values():
    run = healthy()
    _, values = decode(panel_of(run))
    np.testing.assert_allclose(values.T, read(run).scaled, atol=1e-6)


def test_cells_lie_at_their_steps_and_sites():
    names = Names()
    panel = panel_of(healthy(steps=[0, 1, 10, 20]), names=names)
    assert panel["step_spans"] == [[0, 0], [1, 1], [10, 10], [20, 20]]
    assert panel["x_edges"] == [-0.5, 0.5, 5.5, 15.0, 25.0]
    assert panel["y_edges"] == [place - 0.5 for place in range(9)]
    assert [names.texts[first] for first, _ in panel["row_sites"]] == [f"blocks.{block}:sum" for block in range(8)]
    assert panel["blocks"][3] == [4, 2.5, 3.5]
    assert panel["y_ticks"][1][0] == "1"
    assert panel["y_ticks"][1][-1] == "8"


@pytest.mark.parametrize("num_steps", [1, 2, 3, 4, 7, 60, 301, 12345])
def test_steps_are_labelled_with_whole_numbers_once_each(num_steps):
    run = healthy(num_blocks=1, steps=range(0, num_steps, max(num_steps // 50, 1)))
    for labels in (
        panel_of(run)["step_ticks"],
        loss_panel(run, LossAxis.of_runs([run]), nonfinite_step=None, limit=100)["x_ticks"],
    ):
        assert labels[0] == 0
        assert len(labels) >= min(num_steps, 2)
        assert len(set(labels)) == len(labels) <= 7
        assert all(isinstance(label, int) for label in labels)


def test_a_thinned_panel_names_the_span_of_every_cell():
    names = Names()
    panel = panel_of(healthy(steps=range(50)), names=names, budget=Budget(rows=3, cells=30, points=5))
    assert [[names.texts[i] for i in pair] for pair in panel["row_sites"]] == [
        ["blocks.0:sum", "blocks.2:sum"],
        ["blocks.3:sum", "blocks.5:sum"],
        ["blocks.6:sum", "blocks.7:sum"],
    ]
    assert panel["step_spans"][0][0] == 0
    assert panel["step_spans"][-1][1] == 49
    assert all(later[0] == earlier[1] + 1 for earlier, later in pairwise(panel["step_spans"]))
    assert [curve["step"] for curve in panel["curves"]] == [0, 1, 7, 49]


def test_curves_stop_before_the_first_nonfinite_step():
    panel = panel_of(exploding())
    assert panel["nonfinite_step"] == 2
    assert [curve["step"] for curve in panel["curves"]] == [0, 1]
    np.testing.assert_allclose(panel["curves"][0]["x"], np.arange(8) * np.log10(2.0), atol=1e-5)


def test_matrices_of_a_block_are_drawn_in_bands_with_a_break_between():
    names = Names()
    panel = panel_of(healthy(weights_per_block=2, num_blocks=3), GRADIENT, names=names)
    assert panel["bands"] == [["linear1", -0.5, 2.5], ["linear2", 2.5, 5.5]]
    assert [names.texts[first] for first, _ in panel["row_sites"]] == [
        f"blocks.{block}.linear{index}.weight" for index in (1, 2) for block in range(3)
    ]
    assert panel["blocks"] == [
        [1, -0.5, 0.5], [2, 0.5, 1.5], [3, 1.5, 2.5], [1, 2.5, 3.5], [2, 3.5, 4.5], [3, 4.5, 5.5],
    ]  # fmt: skip
    assert panel["curves"][0]["y"] == [0, 1, 2, None, 3, 4, 5]
    assert panel["curves"][0]["x"] == [-1, -1, -1, None, -1, -1, -1]
    assert panel["y_ticks"] == [[0, 1, 3, 4, 5], ["1", "2", "1", "2", "3"]]
    assert not panel["points"]


def test_blocks_of_very_many_matrices_are_drawn_as_points_in_their_order():
    panel = panel_of(healthy(weights_per_block=9, num_blocks=2), GRADIENT)
    assert panel["points"]
    assert panel["blocks"] == [[1, -0.5, 8.5], [2, 8.5, 17.5]]
    assert None not in panel["curves"][0]["y"]


def test_a_prediction_for_one_band_is_drawn_in_that_band():
    made = healthy(weights_per_block=2, num_blocks=3).recording
    grid = GridReader(made).read(GRADIENT)
    first = tuple(f"blocks.{block}.linear1.weight" for block in range(3))
    prediction = Prediction("param_grad", "l2_norm", first, [1.0, 10.0, 100.0])
    panel = depth_panel(grid, prediction, scale=shared_scale([grid]), names=Names(), budget=Budget.share(1))
    assert panel["predicted"]["line"] == {"x": [0, 1, 2], "y": [0, 1, 2]}
    assert panel["row_predicted"] == ["1.00", "10.0", "100", "-", "-", "-"]


def test_predictions_lie_on_the_scale_at_their_sites():
    run = healthy()
    panel = panel_of(run)
    value = run.predictions[0].value
    assert panel["predicted"]["line"]["y"] == list(range(8))
    np.testing.assert_allclose(panel["predicted"]["line"]["x"], np.log10(value), atol=1e-5)
    outline = np.log10(np.concatenate([0.8 * value, 1.25 * value[::-1]]))
    np.testing.assert_allclose(panel["predicted"]["band"]["x"], outline, atol=1e-5)
    assert panel["predicted"]["band"]["y"] == [*range(8), *reversed(range(8))]
    assert panel["row_predicted"][0] == "1.00 (0.80-1.2)"
    low, high = panel["x_range"]
    assert low < np.log10(0.8) < np.log10(1.25 * 1.14) < high


def test_a_prediction_in_another_order_of_sites_is_drawn_along_the_depth():
    grid = read(healthy())
    prediction = Prediction("activation", "rms", ("blocks.5:sum", "elsewhere", "blocks.1:sum"), [5.0, 9.0, 1.0])
    places, arrays = predicted_at(grid, prediction)
    assert places.tolist() == [1, 5]
    np.testing.assert_allclose(arrays["value"], np.log10([1.0, 5.0]))
    assert list(arrays) == ["value"]


def test_a_prediction_for_other_sites_draws_nothing():
    grid = read(healthy())
    panel = depth_panel(
        grid,
        Prediction("activation", "rms", ("elsewhere",), [1.0]),
        scale=shared_scale([grid]),
        names=Names(),
        budget=Budget.share(1),
    )
    assert panel["predicted"] is None
    assert set(panel["row_predicted"]) == {"-"}


def test_names_are_stored_once_and_inert():
    names = Names()
    assert [names.number(text) for text in ("a", HOSTILE, "a", HOSTILE)] == [0, 1, 0, 1]
    assert len(names.texts[1]) <= 160
    assert not any(character in names.texts[1] for character in "\x1b\u202e\x07")


@pytest.mark.parametrize("run", [healthy(), exploding(), vanishing()], ids=lambda run: run.name)
@pytest.mark.parametrize("quantity", QUANTITIES, ids=lambda quantity: quantity.key)
def test_every_panel_is_strict_json(run, quantity):
    assert "codes" in to_json(panel_of(run, quantity))


def test_rounding_keeps_six_digits_and_marks_what_is_not_finite():
    assert rounded(np.array([1.23456789, -30.00001, np.nan, np.inf])) == [1.23457, -30.0, None, None]


def test_bounds_lie_midway_between_steps():
    assert step_bounds(np.array([0])).tolist() == [-0.5, 0.5]
    assert step_bounds(np.array([0, 10, 20])).tolist() == [-5.0, 5.0, 15.0, 25.0]


@pytest.mark.parametrize("num_panels", [1, 3, 24, 144])
def test_all_panels_together_stay_within_the_budget_of_a_file(num_panels):
    budget = Budget.share(num_panels)
    cells = budget.rows * budget.columns(budget.rows)
    assert cells * num_panels <= 600_000
    assert budget.rows >= 24
    assert budget.columns(budget.rows) >= 24


def test_the_table_of_numbers_shows_what_was_recorded_beside_what_was_predicted():
    run = healthy(num_blocks=64)
    table = number_table(read(run), run.predictions[0])
    assert table.header == ("block", "site", "step 0", "step 1", "step 2", "step 4", "predicted at step 0")
    assert table.rows[0] == ("1", "blocks.0:sum", "1.00", "1.01", "1.02", "1.04", "1.00 (0.80-1.2)")
    assert table.rows[-1][:3] == ("64", "blocks.63:sum", "2.26")
    assert len(table.rows) <= 9


def test_the_table_of_numbers_covers_every_band():
    table = number_table(read(healthy(weights_per_block=2, num_blocks=64), GRADIENT), None)
    assert len(table.rows) <= 10
    assert [row[1] for row in table.rows if row[0] == "1"] == ["blocks.0.linear1.weight", "blocks.0.linear2.weight"]
    assert table.rows[-1][1] == "blocks.63.linear2.weight"


def test_the_table_of_numbers_includes_the_last_step_of_a_run_that_broke():
    table = number_table(read(exploding()), None)
    assert table.header == ("block", "site", "step 0", "step 1", "step 4")
    assert table.rows[-1][2:] == ("128", "128", "inf")


def test_cells_tell_missing_from_not_finite():
    made = recording(lambda block, step: [None, np.nan, np.inf, 1.0][block % 4], count_nonfinite=False, num_blocks=3)
    grid = GridReader(made).read(ACTIVATION)
    assert [cell_text(grid, step_index=0, site_index=place) for place in range(3)] == ["not recorded", "NaN", "inf"]


def test_a_finite_value_of_a_tensor_with_nonfinite_elements_says_so():
    grid = read(exploding())
    grid.nonfinite[0, 0] = True
    assert cell_text(grid, step_index=0, site_index=0) == "1.00, non-finite elements"


def test_predictions_as_text():
    prediction = Prediction("activation", "rms", ("a",), [7.2e-10])
    assert prediction_text(prediction, "a") == "7.2e-10"
    assert prediction_text(prediction, "b") == "-"
