"""Down-sampling keeps extremes, non-finite values and order."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kilolayer.recording import Site
from kilolayer.report.bands import Band
from kilolayer.report.grid import Grid
from kilolayer.report.quantity import QUANTITIES
from kilolayer.report.thin import FIRST_CODE, MISSING, NONFINITE, ZERO, bin_edges, chosen_steps, thin_curve, thin_grid


def grid_of(values, recorded=None):
    """A grid of ``(num_steps, num_sites)`` values on a log scale."""
    values = np.asarray(values, dtype=np.float64)
    recorded = np.ones(values.shape, dtype=bool) if recorded is None else recorded
    table = tuple(Site(name=f"s{i}", path=f"s{i}", kind="sum", order=i) for i in range(values.shape[1]))
    return Grid(QUANTITIES[0], table, np.arange(len(values)), values, recorded, recorded & ~np.isfinite(values))


@given(st.integers(0, 5000), st.integers(1, 600))
def test_bins_cover_everything_once_in_equal_steps(count, limit):
    edges = bin_edges(count, limit)
    sizes = np.diff(edges)
    assert edges[-1] == count
    assert len(sizes) <= limit
    if count:
        assert edges[0] == 0
        assert sizes.min() >= 1
        assert (sizes[:-1] == sizes[0]).all()
        assert sizes[-1] <= sizes[0]
        assert len(sizes) == count or sizes[0] > 1


def test_a_small_grid_is_kept_value_by_value():
    rng = np.random.default_rng(0)
    values = 10 ** rng.uniform(-12, 12, (7, 5))
    cells = thin_grid(grid_of(values), max_rows=5, max_columns=7)
    assert cells.codes.shape == (5, 7)
    np.testing.assert_allclose(cells.values, np.log10(values).T, atol=24 / 65_000)


@pytest.mark.parametrize(("max_rows", "max_columns"), [(10, 20), (1, 1), (30, 3), (300, 7)])
def test_extremes_survive(max_rows, max_columns):
    rng = np.random.default_rng(1)
    values = rng.uniform(0.9, 1.1, (200, 30))
    values[117, 3], values[60, 22] = 1e6, 1e-9
    cells = thin_grid(grid_of(values), max_rows=max_rows, max_columns=max_columns)
    assert (
        cells.codes.shape
        == {(10, 20): (10, 20), (1, 1): (1, 1), (30, 3): (30, 3), (300, 7): (30, 7)}[max_rows, max_columns]
    )
    assert np.nanmin(cells.values) == pytest.approx(-9, abs=1e-3)
    if cells.codes.size > 1:
        assert np.nanmax(cells.values) == pytest.approx(6, abs=1e-3)


def test_no_row_mixes_bands():
    bands = (Band("first", 0, 5), Band("second", 5, 10))
    grid = dataclasses.replace(grid_of(np.ones((4, 10))), bands=bands)
    assert thin_grid(grid, max_rows=4, max_columns=4).site_edges.tolist() == [0, 3, 5, 8, 10]
    assert thin_grid(grid, max_rows=1, max_columns=4).site_edges.tolist() == [0, 5, 10]
    assert thin_grid(grid, max_rows=100, max_columns=4).site_edges.tolist() == list(range(11))


def test_a_nonfinite_value_wins_over_every_other_then_a_zero():
    values = np.ones((100, 100))
    values[50, 50] = np.inf
    values[51, 51] = 1e-30
    values[10, 10] = 0.0
    values[11, 11] = 1e30
    cells = thin_grid(grid_of(values), max_rows=10, max_columns=10)
    assert cells.codes[5, 5] == NONFINITE
    assert cells.codes[1, 1] == ZERO
    assert np.count_nonzero(cells.codes < FIRST_CODE) == 2


def test_a_cell_without_any_row_is_missing():
    recorded = np.ones((4, 4), dtype=bool)
    recorded[2:, 2:] = False
    values = np.where(recorded, 1.0, np.nan)
    cells = thin_grid(grid_of(values, recorded), max_rows=2, max_columns=2)
    assert cells.codes[1, 1] == MISSING
    assert (cells.codes[[0, 0, 1], [0, 1, 0]] >= FIRST_CODE).all()


@pytest.mark.parametrize("fill", [np.nan, np.inf, 0.0])
def test_a_grid_without_any_drawable_value(fill):
    cells = thin_grid(grid_of(np.full((3, 2), fill)), max_rows=10, max_columns=10)
    assert set(cells.codes.ravel().tolist()) == {ZERO if fill == 0 else NONFINITE}
    assert np.isnan(cells.values).all()


@given(st.lists(st.floats(width=32), min_size=1, max_size=400), st.integers(8, 60))
def test_a_thinned_curve_keeps_its_ends_extremes_and_first_nonfinite(values, limit):
    curve = np.array(values)
    kept = thin_curve(curve, limit)
    assert len(kept) <= max(limit, 5)
    assert (np.diff(kept) > 0).all()
    assert {kept[0], kept[-1]} == {0, len(curve) - 1}
    finite = curve[np.isfinite(curve)]
    if len(finite):
        shown = curve[kept][np.isfinite(curve[kept])]
        assert (shown.min(), shown.max()) == (finite.min(), finite.max())
    if len(finite) < len(curve):
        assert np.argmin(np.isfinite(curve)) in kept


@pytest.mark.parametrize(
    ("num_steps", "nonfinite_step", "expected"),
    [
        (300, None, [0, 1, 17, 299]),
        (300, 3, [0, 1, 2]),
        (300, 1, [0]),
        (300, 0, [0]),
        (1, None, [0]),
        (2, None, [0, 1]),
        (40, 30, [0, 1, 5, 29]),
    ],
)
def test_curves_are_drawn_at_the_first_and_the_last_usable_step(num_steps, nonfinite_step, expected):
    assert chosen_steps(np.arange(num_steps), nonfinite_step).tolist() == expected


def test_steps_are_chosen_by_position_where_recorded_every_tenth():
    assert chosen_steps(np.arange(0, 1000, 10), 500).tolist() == [0, 1, 7, 49]


def test_codes_fit_sixteen_bits():
    cells = thin_grid(grid_of([[1e-38, 1e38, 1.0]]), max_rows=3, max_columns=1)
    assert cells.codes.dtype == np.uint16
    np.testing.assert_allclose(cells.values[:, 0], [-38, 38, 0], atol=2e-3)
    assert (cells.low, cells.high) == (-38.0, 38.0)
