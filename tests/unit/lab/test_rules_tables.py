import math

import pytest
from depth_results import LAYERS, rules_result
from rich.console import Console

from kilolayer.lab.rules_results import rank
from kilolayer.lab.rules_tables import print_results, range_of


def printed(results, width=80):
    console = Console(width=width, color_system=None, record=True, file=None, quiet=False)
    with console.capture() as capture:
        print_results(rank(results), console)
    return capture.get()


@pytest.fixture(scope="module")
def results():
    vanishing = [10.0 ** (index - 2 * LAYERS) for index in range(2 * LAYERS)]
    return [
        *(rules_result("deepnorm:deepnet", seed, 2.4 + seed / 10) for seed in range(2)),
        *(rules_result("post-ln", seed, 3.14, grads=vanishing) for seed in range(2)),
        *(rules_result("admin", seed, math.inf, nonfinite_step=1) for seed in range(2)),
    ]


@pytest.mark.parametrize("width", [60, 80, 200])
def test_tables_fit_and_name_every_scheme(results, width):
    text = printed(results, width)
    assert max(map(len, text.splitlines())) <= width
    for scheme in ("deepnorm:deepnet", "post-ln", "admin"):
        assert text.count(scheme) >= 3
    assert "Gradient by depth, at step 0" in text


def test_rows_say_what_was_measured(results):
    rows = {
        line.split()[0]: line.split()
        for line in printed(results, 200).splitlines()
        if line.startswith(("deep", "post", "admin"))
    }
    assert "2.40-2.50" in printed(results, 200)
    assert "0.64-0.74" in printed(results, 200)  # post-LN behind deepnet on the same seeds
    assert rows["post-ln"][-1] == "1.0e6"
    assert "inf" in printed(results, 200)


def test_ranges():
    assert range_of([2.5, 2.4]) == "2.40-2.50"
    assert range_of([2.5]) == "2.50"
    assert range_of([]) == "-"
    assert range_of([1.0, math.nan]) == "1.00 to NaN"
    assert range_of([math.nan]) == "NaN"
