import math

import pyarrow.parquet as pq
import pytest

from kilolayer.lab.depth_results import save_table, sentence, stand


def record(scheme, layers, lr, seed, loss, outcome="trains", rule=None):
    return {
        "scheme": scheme,
        "rule": rule,
        "decoder_layers": layers,
        "lr": lr,
        "seed": seed,
        "held_out_loss": loss,
        "outcome": outcome,
        "losses": [3.0, 2.0],
        "verdict": None,
        "finding": {"cause": "a"},
    }


RECORDS = [
    record("pre-ln", 32, 1e-3, 0, 2.0),
    record("pre-ln", 32, 1e-3, 1, 2.2),
    record("pre-ln", 32, 1e-2, 0, 1.5),
    record("pre-ln", 32, 1e-2, 1, None, "non-finite"),
    record("deepnorm", 32, 1e-3, 0, 1.9, rule="deepnet"),
    record("deepnorm", 32, 1e-3, 1, 1.9, rule="deepnet"),
    record("post-ln", 32, 1e-3, 0, 2.8, "stuck"),
    record("post-ln", 8, 1e-3, 0, 2.0),
]


def by_name(layers=32):
    return {one.scheme: one for one in stand(RECORDS) if one.layers == layers}


def test_a_rate_counts_where_every_seed_trains():
    found = by_name()["pre-ln"]
    assert found.best_lr == 1e-3
    assert found.best_loss == pytest.approx(2.1)
    assert [found.describe(lr) for lr in (1e-3, 1e-2, 1e-1)] == ["2.100", "nan 1/2", "-"]


def test_a_scheme_that_trains_nowhere_has_no_best():
    found = by_name()["post-ln"]
    assert found.best_lr is None
    assert math.isnan(found.best_loss)
    assert found.describe(1e-3) == "stuck 1/1"


def test_the_sentence_is_about_the_deepest_and_the_best_comes_first():
    assert sentence(stand(RECORDS)) == (
        "At 32 layers deepnorm:deepnet ends at 1.900 nats (lr 0.001); pre-ln ends at 2.100 nats (lr 0.001); "
        "post-ln trains at no rate tried."
    )


def test_depths_come_in_order():
    assert [one.layers for one in stand(RECORDS)] == [8, 32, 32, 32]


def test_the_table_holds_every_cell(tmp_path):
    table = pq.read_table(save_table(RECORDS, tmp_path))
    assert table.num_rows == len(RECORDS)
    assert table.column("losses").to_pylist()[0] == [3.0, 2.0]
    assert "finding" not in table.column_names
