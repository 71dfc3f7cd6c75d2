"""Lines and bands along the depth lie where the sites lie, and join like with like only."""

import numpy as np
import pytest
from report_runs import healthy, recording

from kilolayer.report.grid import GridReader
from kilolayer.report.lines import HALF_HEIGHT, band_points, line_points, predicted_at
from kilolayer.report.quantity import QUANTITIES
from kilolayer.report.view import Prediction

ACTIVATION, GRADIENT, _ = QUANTITIES
REACH = (-9.0, 9.0)


def gradients(num_blocks=3, weights_per_block=2):
    made = healthy(num_blocks=num_blocks, weights_per_block=weights_per_block).recording
    return GridReader(made).read(GRADIENT)


def band_of(grid, prediction, limit=1000):
    places, arrays = predicted_at(grid, prediction)
    return band_points(grid, places, arrays, reach=REACH, limit=limit)


def shapes(points):
    """The closed shapes a drawing consists of: arrays of (x, y)."""
    found = [[]]
    for x, y in zip(points["x"], points["y"], strict=True):
        assert (x is None) == (y is None)
        if x is None:
            found.append([])
        else:
            found[-1].append((x, y))
    return [np.array(shape) for shape in found if shape]


def weight(block, index):
    return f"blocks.{block}.linear{index}.weight"


def test_a_band_is_one_shape_for_the_first_matrices_and_one_for_the_second():
    order = [(block, index) for index in (1, 2) for block in range(3)]
    low = np.array([1.0, 2.0, 3.0, 10.0, 20.0, 30.0])
    names = tuple(weight(block, index) for block, index in order)
    prediction = Prediction("param_grad", "l2_norm", names, 2 * low, low, 4 * low)
    first, second = shapes(band_of(gradients(), prediction))
    for shape, lows, places in ((first, low[:3], [0, 1, 2]), (second, low[3:], [3, 4, 5])):
        np.testing.assert_allclose(shape[:, 1], [*places, *reversed(places)])
        np.testing.assert_allclose(10 ** shape[:, 0], [*lows, *(4 * lows[::-1])], rtol=1e-5)


def test_predictions_in_the_order_of_the_blocks_are_sorted_into_the_bands():
    names = tuple(weight(block, index) for block in range(3) for index in (1, 2))
    value = np.array([1.0, 10.0, 2.0, 20.0, 3.0, 30.0])
    grid = gradients()
    places, arrays = predicted_at(grid, Prediction("param_grad", "l2_norm", names, value))
    line = line_points(grid, places, arrays["value"], 1000)
    assert line["y"] == [0, 1, 2, None, 3, 4, 5]
    np.testing.assert_allclose([10**x for x in line["x"] if x is not None], [1, 2, 3, 10, 20, 30], rtol=1e-5)


def test_nothing_is_filled_where_theory_says_nothing():
    first = tuple(weight(block, 1) for block in range(3))
    (shape,) = shapes(band_of(gradients(), Prediction("param_grad", "l2_norm", first, [1.0] * 3, [0.5] * 3, [2.0] * 3)))
    assert shape[:, 1].max() == 2
    holes = Prediction("param_grad", "l2_norm", first, [1.0] * 3, [0.5, np.nan, 0.5], [2.0] * 3)
    low, high = shapes(band_of(gradients(), holes))
    assert low[:, 1].tolist() == [-HALF_HEIGHT, HALF_HEIGHT, HALF_HEIGHT, -HALF_HEIGHT]
    assert high[:, 1].tolist() == [2 - HALF_HEIGHT, 2 + HALF_HEIGHT, 2 + HALF_HEIGHT, 2 - HALF_HEIGHT]


def test_a_block_on_its_own_has_a_line_and_a_band_one_can_see():
    grid = gradients(num_blocks=1)
    names = (weight(0, 1), weight(0, 2))
    prediction = Prediction("param_grad", "l2_norm", names, [1.0, 10.0], [0.1, 1.0], [10.0, 100.0])
    for shape, low in zip(shapes(band_of(grid, prediction)), (-1, 0), strict=True):
        assert shape[:, 0].tolist() == [low, low, low + 2, low + 2]
        assert np.ptp(shape[:, 1]) == pytest.approx(2 * HALF_HEIGHT)
    line = line_points(grid, np.arange(2), np.array([0.5, 1.5]), 1000)
    assert line["x"] == [0.5, 0.5, None, 1.5, 1.5]


def test_an_end_of_zero_on_a_log_scale_reaches_the_edge_of_the_picture():
    names = tuple(weight(block, 1) for block in range(3))
    prediction = Prediction("param_grad", "l2_norm", names, [1.0] * 3, [0.0] * 3, [np.inf] * 3)
    (shape,) = shapes(band_of(gradients(), prediction))
    assert set(shape[:, 0]) == set(REACH)


def test_a_measured_curve_leaves_out_what_was_not_recorded():
    made = recording(lambda block, step: None if block in (2, 5) else 1.0 + block, num_blocks=8)
    grid = GridReader(made).read(ACTIVATION)
    line = line_points(grid, np.arange(8), grid.scaled[0], 1000)
    assert line["y"] == [0, 1, None, 3, 4, None, 6, 7]


@pytest.mark.parametrize("limit", [24, 100])
def test_thinning_keeps_the_ends_and_extremes_of_every_band(limit):
    grid = gradients(num_blocks=500)
    values = np.zeros(1000)
    values[[321, 678]] = 5.0, -5.0
    line = line_points(grid, np.arange(1000), values, limit)
    assert len(line["y"]) <= limit + 2
    assert {0, 321, 499, 500, 678, 999} <= set(line["y"])
    band = band_points(grid, np.arange(1000), {"low": values - 1, "high": values}, reach=REACH, limit=limit)
    assert len(band["y"]) <= 2 * limit + 2
    assert [(shape[:, 1].min(), shape[:, 1].max()) for shape in shapes(band)] == [(0, 499), (500, 999)]


def test_very_many_stretches_stay_within_the_limit():
    grid = gradients(num_blocks=1000, weights_per_block=1)
    values = np.where(np.arange(1000) % 2, 1.0, np.nan)
    line = line_points(grid, np.arange(1000), values, 100)
    assert len(line["x"]) <= 3 * 100
    assert all(x in (1.0, None) for x in line["x"])


def test_unlike_neighbors_are_points_and_boxes():
    grid = gradients(num_blocks=2, weights_per_block=9)
    assert grid.is_mixed
    assert line_points(grid, np.arange(18), np.arange(18.0), 1000)["y"] == list(range(18))
    band = band_points(grid, np.arange(18), {"low": np.zeros(18), "high": np.ones(18)}, reach=REACH, limit=1000)
    assert len(shapes(band)) == 18


def test_no_site_no_point():
    grid = gradients()
    assert line_points(grid, np.zeros(0, dtype=int), np.zeros(0), 10) == {"x": [], "y": []}
