"""A grid keeps apart what is missing, what is zero and what is not finite."""

import numpy as np
import pytest
from report_runs import empty, exploding, healthy, recording, sites, vanishing

from kilolayer.recording import Recording, RecordingWriter, Site
from kilolayer.report.grid import GridReader, first_nonfinite_step, run_series
from kilolayer.report.quantity import QUANTITIES, Quantity, quantities_of
from kilolayer.report.view import Prediction, RunView

ACTIVATION, GRADIENT, UPDATE = QUANTITIES


def read(made, quantity=ACTIVATION):
    return GridReader(made).read(quantity)


def test_values_lie_at_their_step_and_block():
    grid = read(healthy().recording)
    assert grid.steps.tolist() == [0, 1, 2, 3, 4]
    assert [site.name for site in grid.sites] == [f"blocks.{block}:sum" for block in range(8)]
    expected = 1.0 + 0.02 * np.arange(8) + 0.01 * np.arange(5)[:, None]
    np.testing.assert_allclose(grid.values, expected, rtol=1e-6)
    np.testing.assert_allclose(grid.scaled, np.log10(expected), atol=1e-6)
    assert grid.recorded.all()
    assert not grid.nonfinite.any()
    assert grid.first_nonfinite_step is None
    assert grid.block_numbers == list(range(1, 9))


def test_weights_are_the_sites_of_gradients_and_updates_in_bands():
    made = recording(lambda block, step: 1.0, gradient=lambda block, step: 1.0 + block, weights_per_block=2)
    grid = read(made, GRADIENT)
    assert [site.name for site in grid.sites] == [
        f"blocks.{block}.linear{index}.weight" for index in (1, 2) for block in range(8)
    ]
    assert grid.block_numbers == [*range(1, 9), *range(1, 9)]
    assert [(band.label, band.first, band.end) for band in grid.bands] == [("linear1", 0, 8), ("linear2", 8, 16)]
    np.testing.assert_allclose(read(made, UPDATE).values[0], 0.01 * np.tile(1.0 + np.arange(8), 2), rtol=1e-6)


@pytest.mark.parametrize(("weights_per_block", "labels"), [(1, "1 2 4 6 8"), (2, "1 5 1 5 8"), (4, "1 1 1 1 8")])
def test_labels_along_the_depth_are_few_and_end_with_the_last_block(weights_per_block, labels):
    made = recording(lambda block, step: 1.0, weights_per_block=weights_per_block)
    grid = read(made, GRADIENT)
    assert " ".join(str(grid.block_numbers[place]) for place in grid.tick_places()) == labels


def test_a_missing_row_is_not_a_recorded_nan():
    made = recording(lambda block, step: None if block == 1 else np.nan if block == 2 else 1.0)
    grid = read(made)
    assert grid.recorded[0].tolist() == [True, False] + [True] * 6
    assert grid.nonfinite[0].tolist() == [False, False, True] + [False] * 5
    assert np.isnan(grid.scaled[0, [1, 2]]).all()


def test_infinite_values_and_counted_elements_are_not_finite():
    grid = read(exploding().recording)
    assert grid.first_nonfinite_step == 2
    assert grid.nonfinite[2].tolist() == [False] * 4 + [True] * 4
    made = recording(lambda block, step: 1.0)
    counted = RecordingWriter()
    counted.sites = list(made.sites)
    for step in range(3):
        for block in range(8):
            counted.add(step, f"blocks.{block}:sum", "activation", "rms", 1.0)
            counted.add(step, f"blocks.{block}:sum", "activation", "nonfinite", float(step == 1 and block == 6))
    grid = read(counted.close())
    assert np.argwhere(grid.nonfinite).tolist() == [[1, 6]]
    assert np.isfinite(grid.values).all()


def test_counts_at_other_steps_are_matched_by_step():
    writer = RecordingWriter()
    writer.sites = sites(1)
    for step in range(4):
        writer.add(step, "blocks.0:sum", "activation", "rms", 1.0)
    writer.add(2, "blocks.0:sum", "activation", "nonfinite", 5.0)
    writer.add(9, "blocks.0:sum", "activation", "nonfinite", 5.0)
    assert read(writer.close()).nonfinite[:, 0].tolist() == [False, False, True, False]


def test_exact_zeros_are_recorded_but_not_on_a_log_scale():
    grid = read(vanishing().recording, GRADIENT)
    assert grid.recorded.all()
    assert not grid.nonfinite.any()
    assert np.isnan(grid.scaled[:, 0]).all()
    np.testing.assert_allclose(grid.scaled[:, 1:], -30, atol=1e-5)


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_nothing_recorded_reads_as_none(quantity):
    assert read(empty().recording, quantity) is None


def test_rows_without_a_site_table_are_read_all_the_same():
    made = healthy().recording
    grid = read(Recording(made.rows, (), {}))
    assert sorted(site.name for site in grid.sites) == [f"blocks.{block}:sum" for block in range(8)]
    np.testing.assert_allclose(np.sort(grid.values[0]), 1.0 + 0.02 * np.arange(8), rtol=1e-6)
    assert grid.block_numbers == list(range(1, 9))


def test_weights_outside_blocks_are_read_where_no_block_has_any():
    writer = RecordingWriter()
    writer.sites = [
        Site(name="head.weight", path="head", kind="weight", order=1),
        Site(name="stem.weight", path="stem", kind="weight", order=0),
        Site(name="stem.bias", path="stem", kind="parameter", order=2),
    ]
    for name in ("head.weight", "stem.weight", "stem.bias"):
        writer.add(0, name, "param_grad", "l2_norm", 1.0)
    assert [site.name for site in read(writer.close(), GRADIENT).sites] == ["stem.weight", "head.weight"]


def test_a_table_that_marks_other_sites_falls_back_to_those_recorded():
    writer = RecordingWriter()
    writer.sites = [*sites(2), Site(name="norm", path="norm", kind="norm", order=50)]
    writer.add(0, "norm", "activation", "rms", 3.0)
    writer.add(0, "unlisted", "activation", "rms", 4.0)
    grid = read(writer.close())
    assert [site.name for site in grid.sites] == ["norm", "unlisted"]
    assert grid.values.tolist() == [[3.0, 4.0]]


def test_the_first_nonfinite_step_counts_the_loss_too():
    run = exploding()
    grids = [read(run.recording, quantity) for quantity in QUANTITIES]
    assert first_nonfinite_step(run.recording, grids) == 2
    assert first_nonfinite_step(run.recording, [None]) == 3
    assert first_nonfinite_step(healthy().recording, []) is None


def test_the_loss_is_a_series_of_the_run():
    steps, losses = run_series(healthy().recording, "loss")
    assert steps.tolist() == [0, 1, 2, 3, 4]
    np.testing.assert_allclose(losses, 2.3 / (1 + np.arange(5)), rtol=1e-6)


def test_a_prediction_of_another_statistic_is_a_quantity_of_its_own():
    name = ("blocks.0:sum",)
    run = RunView(
        "run",
        healthy().recording,
        predictions=(
            Prediction("activation", "sample_cosine", name, [0.5]),
            Prediction("param", "l2_norm", name, [1.0]),
        ),
    )
    cosine, norm = quantities_of([run, run])[3:]
    assert cosine == Quantity(
        "activation", "sample_cosine", "Activation sample cosine", cosine.meaning, "stream", log=False
    )
    assert (norm.where, norm.log, norm.key) == ("weights", True, "param-l2_norm")
    assert quantities_of([healthy()]) == QUANTITIES
