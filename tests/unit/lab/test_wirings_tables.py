"""The lab's tables: what each number is, at any width, and for networks in which theory or measurement is zero."""

import re
from itertools import product

import numpy as np
import pytest
from wiring_runs import finished

from kilolayer.lab.wirings import WIRINGS
from kilolayer.lab.wirings_report import save_reports
from kilolayer.lab.wirings_results import to_record
from kilolayer.lab.wirings_tables import step_0_tables, training_table, verdict
from kilolayer.report import format_range, to_json, to_text


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    names = ("plain-naive", "res-nonorm-scaled", "prenorm")
    return [finished(folder, name, lr=lr, seed=seed) for name, lr, seed in product(names, (0.05, 0.005), (0, 1))]


def test_each_table_of_step_0_says_what_its_numbers_are(results):
    std, grad = step_0_tables([result for result in results if result.run.lr == 0.05])
    for table, title in ((std, "Activation std at step 0"), (grad, "Gradient norm of each block's first matrix")):
        text = to_text(table)
        assert text.startswith(title)
        assert re.search(r"^wiring +block 1 +block 3$", text, re.MULTILINE)
        assert text.count("  predicted ") == 3
    seeds = [result.grad_norm[2] for result in results[:2]]
    assert re.search(rf"^plain-naive .* {format_range(min(seeds), max(seeds))}$", to_text(grad), re.MULTILINE)


@pytest.mark.parametrize("width", [30, 40, 60, 80, 120])
def test_every_row_of_every_part_says_which_run_it_is(results, width):
    text = to_text(training_table(results), width=width)
    parts = re.split(r"\n\n", text)
    for part in parts:
        header = next(line for line in part.splitlines() if line.startswith("wiring"))
        assert header.split()[:2] == ["wiring", "lr"]
        assert len(re.findall(r" 0\.05\b", part)) == 3
        assert len(re.findall(r" 0\.005\b", part)) == 3
    assert max(len(line) for line in text.splitlines()) <= width
    assert len(parts) == 1 if width >= 80 else len(parts) > 1


def test_one_word_for_what_is_not_finite_and_only_where_it_happened(results, tmp_path):
    assert "non-finite" not in to_text(training_table(results))
    broken = finished(tmp_path, "res-nonorm", num_blocks=32, num_steps=20)
    assert broken.result["outcome"] == "non-finite"
    text = to_text(training_table([*results, broken]), width=100)
    assert "non-finite at" in text
    assert f"step {broken.result['nonfinite_step']}" in text
    assert "NaN at" not in text


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("norm", ["layer", "rms", "batch"])
def test_networks_too_narrow_for_their_norm_are_shown_without_a_warning(tmp_path, width, norm):
    # LayerNorm over one unit is always 0, and so is what theory expects of the gradients behind it.
    results = [finished(tmp_path, w.name, num_blocks=1, width=width, num_steps=3, norm=norm) for w in WIRINGS]
    text = "".join(to_text(table) for table in (*step_0_tables(results), training_table(results)))
    assert "NaN" not in text
    assert "*0" not in text
    for result in results:
        assert verdict([result]).plain
        assert "NaN" not in to_json(to_record(result))
    if (width, norm) == (1, "layer"):
        assert len(save_reports(results, tmp_path)) == 2


def test_one_is_singular(tmp_path):
    result = finished(tmp_path, "plain-kaiming", num_blocks=1, num_steps=1, width=16)
    assert np.isfinite(result.result["loss"])
    assert "1 block over 1 step" in verdict([result]).plain
