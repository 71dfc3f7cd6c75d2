"""A parameter of zeros has no update ratio; an update that is not finite is another matter."""

import numpy as np
import pytest

from kilolayer.recording import RecordingWriter, Site
from kilolayer.report import RunView, render_depth, to_text
from kilolayer.report.grid import GridReader
from kilolayer.report.quantity import QUANTITIES
from kilolayer.report.ratios import undefined_ratios

NAMES = ("blocks.0.weight", "blocks.1.weight")
(RATIO,) = (one for one in QUANTITIES if one.stat == "update_ratio")


def recorded(update_norm=0.1, with_norms=True):
    """Two matrices over two steps; the second starts at zero."""
    writer = RecordingWriter()
    writer.sites += [Site(name, name, "weight", order, block_index=order) for order, name in enumerate(NAMES)]
    for step in range(2):
        writer.add(step, "run", "run", "loss", 2.0 - step)
        for name in NAMES:
            is_zero = step == 0 and name == NAMES[1]
            writer.add(step, name, "update", "update_ratio", np.inf if is_zero else 0.01)
            if with_norms:
                writer.add(step, name, "update", "l2_norm", update_norm)
    return writer.close()


def test_a_finite_update_of_zeros_is_undefined_there_and_nowhere_else():
    assert undefined_ratios(recorded(), NAMES).tolist() == [[False, True], [False, False]]


@pytest.mark.parametrize(
    "recording", [recorded(update_norm=np.inf), recorded(with_norms=False)], ids=["inf", "unknown"]
)
def test_what_is_not_known_to_be_finite_stays_infinite(recording):
    assert not undefined_ratios(recording, NAMES).any()
    assert "not finite from step 0" in RunView("run", recording).doubt


def test_a_run_whose_biases_start_at_zero_is_not_doubted():
    assert "not finite" not in RunView("run", recorded()).doubt


def test_the_map_shows_it_as_not_recorded():
    grid = GridReader(recorded()).read(RATIO)
    assert grid.first_nonfinite_step is None
    assert grid.recorded.tolist() == [[True, False], [True, True]]
    assert "non-finite" not in to_text(render_depth(RunView("run", recorded())))
