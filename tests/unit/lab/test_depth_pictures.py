import math
import struct

import numpy as np
import pytest
from depth_results import LAYERS, rules_result, search_result
from matplotlib.figure import Figure

from kilolayer.lab.depth_pictures import (
    COLORS,
    DASHES,
    draw_curves,
    draw_panels,
    save_picture,
    scale_height_by_log,
    style_of,
)
from kilolayer.lab.lr_tolerance_pictures import draw_tolerance
from kilolayer.lab.rules_experiment import DEFAULT_SCHEMES
from kilolayer.lab.rules_pictures import SMOOTH_STEPS, draw_rules, smoothed
from kilolayer.lab.rules_results import rank


def size_of(png):
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", png[16:24])


def test_every_scheme_has_a_style_of_its_own():
    styles = [tuple(style_of(number).values()) for number in range(len(COLORS) * len(DASHES))]
    assert len(set(styles)) == len(styles)


def test_a_curve_is_the_median_with_its_range():
    axes = Figure().subplots()
    places = np.arange(3)
    draw_curves(axes, places, np.array([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0], [2.0, 2.5, 9.0]]), label="$x", number=0)
    (line,) = axes.get_lines()
    assert line.get_ydata().tolist() == [2.0, 2.0, 3.0]
    (band,) = axes.collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (1.0, 9.0)


def test_one_seed_has_no_range():
    axes = Figure().subplots()
    draw_curves(axes, np.arange(2), np.ones((1, 2)), label="one", number=1)
    assert len(axes.collections) == 0


def test_the_picture_of_rules_takes_zeros_infinities_and_runs_that_broke_off():
    grads = [0.0] * 4 + [1.0] * (2 * LAYERS - 4)
    standings = rank(
        [
            *(rules_result(scheme, seed, 2.5 + seed) for scheme in DEFAULT_SCHEMES for seed in range(2)),
            rules_result("keel", 0, math.nan, nonfinite_step=2, grads=[math.nan] * 2 * LAYERS),
            rules_result("rezero", 0, 3.0, grads=grads),
        ]
    )
    width, height = size_of(draw_rules(standings, title="a title with $math and \x1b[31m"))
    assert width > 2 * height


def test_a_height_by_log_needs_a_number_above_0():
    scales, words = [], []
    for heights in ([0.0, 0.0], [math.nan, -1.0], [math.inf, 0.0], [0.0, 0.5]):
        axes = Figure().subplots()
        axes.plot([1, 2], heights)
        scale_height_by_log(axes)
        scales.append(axes.get_yscale())
        words.append([text.get_text() for text in axes.texts])
    assert scales == ["linear"] * 3 + ["log"]
    assert words == [["all 0 or not finite"]] * 3 + [[]]


def test_the_picture_of_rules_is_drawn_where_no_layer_has_a_gradient():
    standings = rank([rules_result("rezero", 0, 3.0, grads=[0.0] * 2 * LAYERS)])
    assert size_of(draw_rules(standings, title="zeros"))


def test_the_picture_of_tolerance_has_a_row_per_warm_up():
    outcomes = {1e-3: "stable", 1e-2: "diverges"}
    never = {1e-3: "stuck", 1e-2: "diverges"}
    one_row = [
        search_result(scheme, those, layers=layers)
        for scheme, those in (("keel", outcomes), ("post-ln", never))
        for layers in (4, 8)
    ]
    two_rows = [*one_row, search_result("keel", outcomes, warmup_steps=3)]
    (width, height), (_, taller) = size_of(draw_tolerance(one_row)), size_of(draw_tolerance(two_rows))
    assert taller > 1.5 * height
    assert width > height


def test_losses_are_smoothed_over_what_was_trained():
    losses = [float(step) for step in range(20)]
    curve = smoothed(losses, 25)
    assert curve[19] == np.mean(losses[-SMOOTH_STEPS:])
    assert curve[0] == 0.0
    assert np.isnan(curve[20:]).all()


def test_without_matplotlib_the_reason_is_said(tmp_path):
    def draw():
        raise ImportError("the PNG picture needs matplotlib")

    assert save_picture(tmp_path / "a.png", draw) == "No picture: the PNG picture needs matplotlib"
    assert list(tmp_path.iterdir()) == []
    said = save_picture(
        tmp_path / "b.png", lambda: draw_panels([[lambda axes: axes.plot([1, 2], label="x")]], title="t")
    )
    assert said == f"Picture: {tmp_path / 'b.png'}"
    assert size_of((tmp_path / "b.png").read_bytes())


def test_a_title_of_any_length_is_drawn():
    panel = [[lambda axes: axes.plot([1, 2], label="x")]]
    with pytest.raises(ValueError):
        draw_panels([], title="nothing")
    assert size_of(draw_panels(panel, title="word " * 200))
