"""Tables, sentence and picture of known curves."""

import pytest

from kilolayer.lab.update_experiment import Curve, Setting
from kilolayer.lab.update_picture import draw_png
from kilolayer.lab.update_tables import (
    depth_table,
    exponent,
    gradient_ratios,
    gradient_table,
    label,
    sentence,
    update_table,
)
from kilolayer.report import to_text


def moment(branches, bottom=0.5):
    grads = [bottom, *([0.7] * (branches - 1)), 1.0]
    return {
        "branch_to_skip": [0.5] * branches,
        "neighbor_cosine": [0.9] * branches,
        "input_cosine": [0.8] * branches,
        "token_cosine": [0.1] * branches,
        "sum_max_abs": [*([4.0] * (branches - 1)), 6.0],
        "stream_rms": [1.0] * (branches + 1),
        "stream_grad_rms": grads,
        "norm_gain": [0.7] * branches,
        "norm_gain_expected": [0.71] * branches,
        "spectra": [],
    }


def curve(scheme="deepnorm", optimizer="sgd", *, slope=0.0, bottom=0.5, end=True):
    results = []
    for branches in (10, 100):
        update = {"1": 0.001 * (branches / 10) ** slope, "2": 0.002 * (branches / 10) ** slope}
        last = moment(branches, bottom / 5) if end else None
        results.append(
            ({"seed": 0, "updates": update, "matrix_updates": update, "start": moment(branches, bottom), "end": last},)
        )
    return Curve(Setting("decoder", scheme, optimizer, 1e-3), (10, 100), tuple(results))


def test_updates_stand_above_theorys_sum_with_their_growth():
    text = to_text(update_table([curve("post-ln", slope=1.5), curve(slope=0.0)], 1), width=100)
    lines = [line.split() for line in text.splitlines()]
    assert ["post-ln", "all", "parameters", "0.00100", "0.0316", "1.50"] in lines
    assert ["theory's", "sum", "10.0", "100", "1.00"] in lines
    assert ["theory's", "sum", "0.500", "0.500", "0.00"] in lines
    assert "after 1 step, by branches" in text


def test_step_0_shows_the_deepest_stack():
    text = to_text(depth_table([curve(), curve(optimizer="adamw"), curve("rezero")]), width=200)
    rows = [line.split() for line in text.splitlines() if line.startswith(("deepnorm", "rezero"))]
    assert [row[0] for row in rows] == ["deepnorm", "rezero"]
    assert rows[0] == ["deepnorm", "100", *["0.500"] * 2, *["0.700"] * 2, "0.710", "0.900", "0.800", "0.100", "6.00"]


def test_gradients_at_the_bottom_over_those_at_the_top():
    text = to_text(gradient_table([curve(bottom=0.5)], 8), width=100)
    assert "step 0   0.500  0.500" in text
    assert "after 8  0.100  0.100" in text
    assert gradient_ratios(curve(end=False).results[0], "end") == []


def test_the_sentence_compares_the_ends():
    text = sentence([curve("post-ln", slope=1.0), curve(), curve(optimizer="adamw", slope=2.0)])
    assert text == (
        "The first step moves 100 branches farther than 10 (decoder, sgd at 0.001): post-ln 10x, its matrices 10x "
        "(theory 10x); deepnorm 1.0x, its matrices 1.0x (theory 1.0x)."
    )


def test_one_depth_alone_has_nothing_to_say():
    one = curve()
    alone = Curve(one.setting, (10,), one.results[:1])
    assert "several with --branches" in sentence([alone])


def test_labels_tell_what_differs():
    curves = [curve(), curve("pre-ln")]
    assert [label(one, curves) for one in curves] == ["deepnorm", "pre-ln"]
    curves = [curve(), curve(optimizer="adamw")]
    assert [label(one, curves) for one in curves] == ["deepnorm sgd", "deepnorm adamw"]
    assert label(curves[0], curves, with_optimizer=False) == "deepnorm"


@pytest.mark.parametrize(("value", "text"), [(None, "-"), (1.234, "1.23"), (-1e-17, "0.00"), (-0.5, "-0.50")])
def test_exponents_have_two_decimals(value, text):
    assert exponent(value) == text


def test_the_picture_is_drawn_where_the_head_passes_no_gradient_at_step_0():
    silent = curve("fixup", end=False)
    for at in silent.results:
        for result in at:
            result["updates"]["1"] = result["matrix_updates"]["1"] = 0.0
            result["start"]["stream_grad_rms"] = [0.0] * len(result["start"]["stream_grad_rms"])
    assert draw_png([silent])[:8] == b"\x89PNG\r\n\x1a\n"  # a warning would be an error here


def test_the_picture_is_a_png_whatever_ended_early():
    curves = [curve("post-ln", slope=1.5), curve(), curve("rezero", end=False), curve(optimizer="adamw")]
    png = draw_png(curves)
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    assert len(png) > 10_000
