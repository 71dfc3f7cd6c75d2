"""Colors and ticks: shared scales, round numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_runs import recording

from kilolayer.report.depth import depth_ticks
from kilolayer.report.grid import GridReader
from kilolayer.report.quantity import QUANTITIES, Quantity
from kilolayer.report.scale import (
    CURVE_COLORS,
    MAX_DECADES,
    VIRIDIS,
    ColorScale,
    scale_label,
    shared_scale,
    ticks,
    widen,
)


def grid(level, quantity=QUANTITIES[0], **options):
    return GridReader(recording(level, **options)).read(quantity)


def luminance(color):
    red, green, blue = (int(color[place : place + 2], 16) / 255 for place in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_the_color_map_is_ordered_by_lightness():
    assert (np.diff([luminance(color) for color in VIRIDIS]) > 0).all()


def test_the_color_map_is_the_one_matplotlib_draws_with():
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    assert tuple(to_hex(colormaps["viridis"](share)) for share in np.linspace(0, 1, 11)) == VIRIDIS


def test_a_flat_run_gets_a_decade():
    scale = shared_scale([grid(lambda block, step: 1.0)])
    assert (scale.low, scale.high) == (-0.5, 0.5)


def test_one_run_is_never_cut():
    scale = shared_scale([grid(lambda block, step: 10.0 ** (-30 * block / 7))])
    assert scale.low == pytest.approx(-30, abs=0.5)
    assert scale.high == pytest.approx(0, abs=0.5)


def test_several_runs_share_a_scale_about_the_middle_one():
    vanishing = grid(lambda block, step: 10.0 ** (-30 * block / 7))
    normal = [grid(lambda block, step: 1.0 + 0.1 * block) for _ in range(3)]
    scale = shared_scale([vanishing, *normal])
    assert scale.high - scale.low <= MAX_DECADES
    assert scale.low < 0.0 < scale.high


def test_a_long_run_counts_as_much_as_a_short_one():
    one = grid(lambda block, step: 1.0, steps=range(3))
    other = grid(lambda block, step: 1e-3, steps=range(300))
    scale = shared_scale([one, other])
    assert (scale.low, scale.high) == pytest.approx((-3.0, 0.0))


def test_nothing_drawable_still_gives_a_scale():
    scale = shared_scale([grid(lambda block, step: np.nan)])
    assert scale.low < scale.high
    assert shared_scale([]).low < shared_scale([]).high


def test_linear_quantities_keep_their_range():
    cosine = Quantity("activation", "rms", "Cosine", "", "stream", log=False)
    scale = shared_scale([grid(lambda block, step: block / 7, cosine, steps=[0])])
    assert not scale.log
    assert 0 <= scale.low < 0.1 < 0.9 < scale.high <= 1
    flat = shared_scale([grid(lambda block, step: 0.5, cosine)])
    assert flat.high > flat.low


def test_ends_are_labelled_with_numbers():
    scale = ColorScale(-2.0, 4.0)
    assert (scale.label(0), scale.label(0.5), scale.label(1)) == ("0.01", "10", "1e4")


@pytest.mark.parametrize(
    ("position", "log", "shown"),
    [
        (0.0, True, "1"),
        (2.0, True, "100"),
        (3.0, True, "1000"),
        (-9.0, True, "1e-9"),
        (np.log10(0.3), True, "0.3"),
        (np.log10(2298.7), True, "2300"),
        (400.0, True, "1e400"),
        (400.5, True, "inf"),
        (0.5, False, "0.5"),
        (2.0, False, "2"),
        (100.0, False, "100"),
        (0.0, False, "0"),
    ],
)
def test_labels(position, log, shown):
    assert scale_label(position, log=log) == shown


@given(st.floats(-40, 40), st.floats(1, 60), st.booleans())
def test_ticks_lie_in_range_few_and_ascending(low, span, log):
    found = ticks(low, low + span, log=log)
    assert 1 <= len(found) <= 4
    assert all(low - 1e-6 <= place <= low + span + 1e-6 for place in found)
    assert (np.diff(found) > 0).all()
    if log:
        assert len({scale_label(place, log=log) for place in found}) == len(found)


def test_ticks_are_round_numbers():
    assert ticks(-9.2, 0.1, log=True) == [-9.0, -6.0, -3.0, 0.0]
    assert [scale_label(place, log=True) for place in ticks(-0.5, 0.5, log=True)] == ["1", "3"]
    assert ticks(0.0, 2.5, log=False) == [0.0, 1.0, 2.0]
    assert ticks(1.0, 1.0, log=False) == [1.0]


@pytest.mark.parametrize(
    ("num_blocks", "expected"),
    [(1, [1]), (5, [1, 2, 3, 4, 5]), (16, [1, 4, 8, 12, 16]), (64, [1, 20, 40, 64]), (2500, [1, 800, 1600, 2500])],
)
def test_blocks_are_labelled_first_last_and_round(num_blocks, expected):
    numbers = list(range(1, num_blocks + 1))
    assert [numbers[place] for place in depth_ticks(numbers)] == expected


@given(st.integers(1, 4000), st.integers(1, 4), st.integers(3, 12))
def test_depth_ticks_point_at_the_first_site_of_a_block(num_blocks, per_block, at_most):
    numbers = [block for block in range(1, num_blocks + 1) for _ in range(per_block)]
    places = depth_ticks(numbers, at_most=at_most)
    assert 1 <= len(places) <= at_most
    assert places[0] == 0
    assert numbers[places[-1]] == num_blocks
    assert all(place % per_block == 0 for place in places)


def test_widen_keeps_what_is_wide():
    assert widen(0.0, 3.0) == (0.0, 3.0)
    assert widen(1.0, 1.2) == pytest.approx((0.6, 1.6))


def test_curve_colors_differ_and_stand_out_on_white():
    assert len(set(CURVE_COLORS)) == len(CURVE_COLORS) >= 4
    assert all(0 < luminance(color) < 0.7 for color in CURVE_COLORS)
