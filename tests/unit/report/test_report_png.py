"""The PNG picture: readable size, every kind of run, and no trace in matplotlib's global state."""

import io
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from report_runs import HOSTILE, empty, exploding, healthy, hostile, vanishing

from kilolayer.report import draw_png, save_png
from kilolayer.report.fonts import NO_GLYPH, drawable, font_families
from kilolayer.report.scale import NONFINITE_COLOR


def picture(*runs, title="lab wirings"):
    return np.asarray(Image.open(io.BytesIO(draw_png(runs, title=title))).convert("RGB")).astype(int)


def count_near(pixels, color, tolerance=12):
    """Pixels of about this color."""
    wanted = np.array([int(color[place : place + 2], 16) for place in (1, 3, 5)])
    return int((np.abs(pixels - wanted).max(axis=2) <= tolerance).sum())


RUNS = {"healthy": healthy, "exploding": exploding, "vanishing": vanishing, "empty": empty, "hostile": hostile}


@pytest.mark.parametrize("name", RUNS)
def test_every_kind_of_run_can_be_drawn(name):
    assert picture(RUNS[name]()).std() > 5


def test_no_run_is_a_title_on_white():
    assert count_near(picture(), "#ffffff") > 10_000


def test_eight_runs_stand_side_by_side_and_more_below():
    one, eight, nine = picture(healthy()), picture(*[healthy()] * 8), picture(*[healthy()] * 9)
    assert eight.shape[1] > 4 * one.shape[1]
    assert eight.shape[1] == nine.shape[1]
    assert nine.shape[0] > 1.9 * eight.shape[0] - 100
    assert max(nine.shape) < 4000


def test_nonfinite_cells_are_red_and_crossed():
    red = count_near(picture(exploding()), NONFINITE_COLOR)
    assert red > 5000
    assert count_near(picture(healthy()), NONFINITE_COLOR) == 0


def test_columns_share_the_color_scale():
    def colors(pixels):
        first_map = pixels[120:190, 110:250].reshape(-1, 3)
        return len(np.unique(first_map, axis=0))

    assert colors(picture(healthy(), vanishing())) < colors(picture(healthy())) / 2


def test_a_file_appears_under_its_name_only(tmp_path):
    path = save_png([healthy()], tmp_path / "runs.png", title="t")
    assert path == tmp_path / "runs.png"
    assert [entry.name for entry in tmp_path.iterdir()] == ["runs.png"]
    assert path.read_bytes().startswith(b"\x89PNG")


def test_the_same_runs_give_the_same_picture():
    assert draw_png([exploding()], title="t") == draw_png([exploding()], title="t")


def test_matplotlib_is_left_as_found():
    import matplotlib

    before = dict(matplotlib.rcParams)
    draw_png([healthy()], title="t")
    assert dict(matplotlib.rcParams) == before
    program = (
        "import sys; from kilolayer.recording import RecordingWriter; from kilolayer.report import *;"
        "draw_png([RunView('run', RecordingWriter().close())], title='t');"
        "sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_text_without_a_glyph_becomes_a_box_and_formulas_stay_text():
    assert drawable("block $x^2$ é") == "block $x^2$ é"
    assert NO_GLYPH in drawable("\U0001f4a9\U00012000")
    assert "\x1b" not in drawable(HOSTILE)
    assert len(drawable(HOSTILE, limit=30)) == 30
    assert font_families()[0] == "DejaVu Sans"


def test_a_missing_extra_is_named_in_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install 'kilolayer\[report\]'"):
        draw_png([], title="t")
