"""Parts by name, figures beside theory, tables, picture; one folder, continued."""

import math

import pytest

from kilolayer.lab.chain_experiment import PARTS, ChainExperiment, Row, get_part, is_as_predicted, load_rows
from kilolayer.lab.chain_picture import draw_png
from kilolayer.lab.chain_products import RANK
from kilolayer.lab.chain_run import ChainRun, Expected, Key
from kilolayer.lab.chain_tables import quantity_table, sentence
from kilolayer.lab.experiment import run_experiment
from kilolayer.report import to_text


def rows():
    relu = [Row("products", Key("relu", RANK, at), Expected(1 / at), (1 / at, 1.5 / at)) for at in (1, 4, 16)]
    skips = [Row("products", Key("pre-ln", RANK, at), None, (0.5, 0.7)) for at in (1, 4, 16)]
    gains = [Row("gains", Key(f"{name}, lecun", "variance gain of a layer", 1), Expected(0.5), (0.5,)) for name in "ab"]
    return [*relu, *skips, *gains]


@pytest.mark.parametrize(
    ("value", "expected", "is_right"),
    [
        (1.09, Expected(1.0), True),
        (1.2, Expected(1.0), False),
        (5.0, Expected(1.0, 0.2, 6.0), True),
        (7.0, Expected(1.0, 0.2, 6.0), False),
        (1e-9, Expected(0.0), True),
        (0.01, Expected(0.0), False),
        (1e-70, Expected(1e-40), False),
        (math.inf, Expected(1.0), False),
    ],
)
def test_as_predicted(value, expected, is_right):
    assert is_as_predicted(value, expected) is is_right


def test_parts_by_name():
    assert [get_part(part.name) for part in PARTS] == list(PARTS)
    with pytest.raises(ValueError, match="did you mean 'products'"):
        get_part("product")


def test_depths_are_powers_of_four_and_the_last():
    assert ChainRun(part="growth", num_blocks=64).depths() == [1, 4, 16, 64]
    assert ChainRun(part="growth", num_blocks=20).depths() == [1, 4, 16, 20]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_blocks": 1}, "num_blocks must be a whole number >= 2, got 1"),
        ({"width": 4}, "width"),
        ({"seed": -1}, "seed"),
    ],
)
def test_mistakes(changes, message):
    with pytest.raises(ValueError, match=message):
        ChainRun(part="growth", **changes)


def test_a_folder_is_continued_and_read(tmp_path):
    runs = tuple(ChainRun(part="growth", num_blocks=4, width=8, seed=seed) for seed in range(2))
    assert run_experiment(ChainExperiment(runs[:1]), tmp_path, jobs=1)
    result = tmp_path / "growth-seed0" / "result.json"
    when = result.stat().st_mtime_ns
    experiment = ChainExperiment(runs)
    assert run_experiment(experiment, tmp_path, jobs=1)
    assert result.stat().st_mtime_ns == when
    found = load_rows(experiment, tmp_path)
    assert {len(row.measured) for row in found} == {2}
    assert all(row.expected is not None for row in found)
    json = found[0].to_json()
    assert set(json) == {"part", "case", "quantity", "at", "unit", "predicted", "low", "high", "measured"}
    with pytest.raises(ValueError, match="width is 8 there, 16 here"):
        run_experiment(ChainExperiment((ChainRun(part="growth", num_blocks=4, width=16),)), tmp_path, jobs=1)


def test_a_table_shows_medians_above_theory():
    mine = [row for row in rows() if row.part == "products"]
    lines = [line.split() for line in to_text(quantity_table(mine, get_part("products"))).splitlines()]
    assert ["relu", "measured", "1.25", "0.312", "0.0781", "3", "of", "6"] in lines
    assert ["theory", "1.00", "0.250", "0.0625"] in lines
    assert ["pre-ln", "measured", "0.600", "0.600", "0.600", "-"] in lines
    assert "by blocks" in to_text(quantity_table(mine, get_part("products")))


def test_the_sentence_counts_what_theory_speaks_of():
    assert sentence(rows()) == (
        "5 of 8 figures lie within 10 % of theory or inside the 95 % band of draws; behind 16 ReLU layers of gain 1 the "
        "Jacobian's effective rank is 0.078 of the width."
    )
    assert "ReLU" not in sentence(rows()[-2:])


def test_the_picture_is_a_png():
    zero = Row("batch-norm", Key("layer norm", "std over other batches", 2), Expected(0.0), (0.0,))
    png = draw_png([*rows(), zero, Row("products", Key("relu", "condition number", 4), None, (math.inf,))])
    assert png[:8] == b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def figures(monkeypatch):
    """The figures that are saved, as matplotlib has them."""
    from matplotlib.figure import Figure

    saved = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: saved.append(figure))
    return saved


def test_a_case_has_one_color_in_all_panels_of_its_part(figures):
    def of(case, quantity, value):
        return [Row("products", Key(case, quantity, at), Expected(value), (value,)) for at in (1, 4)]

    # What is 0 by theory is left out of its panel, and the next case must not take its color.
    draw_png(
        [*of("orthogonal", RANK, 1.0), *of("relu", RANK, 0.5), *of("orthogonal", "gain", 0.0), *of("relu", "gain", 2)]
    )
    first, second, *_ = figures[0].axes
    colors = [{one.get_label(): one.get_color() for one in axis.get_lines()} for axis in (first, second)]
    assert colors[0]["relu"] == colors[1]["relu"] != colors[0]["orthogonal"]


def test_ticks_of_cases_do_not_run_into_each_other(figures):
    def of(quantity, values):
        return [Row("gains", Key(str(value), quantity, 1), None, (value,)) for value in values]

    draw_png([*of("near", (0.9, 1.2)), *of("far", (0.1, 1.2))])
    near, far, *_ = figures[0].axes
    assert (near.get_xscale(), far.get_xscale()) == ("linear", "log")
    assert {far.xaxis.get_minor_formatter()(value) for value in (0.2, 0.3)} == {""}
