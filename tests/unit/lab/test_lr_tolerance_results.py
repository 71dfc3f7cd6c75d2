import json

import pytest
from depth_results import search_result
from rich.console import Console

from kilolayer.lab.lr_tolerance_results import (
    KEEL_PAPER,
    Setting,
    compare,
    group,
    sentence,
    to_json_runs,
    to_json_search,
)
from kilolayer.lab.lr_tolerance_tables import edge_text, loss_text, print_results, rate_text
from kilolayer.report import to_json

LRS = (1e-3, 1e-2, 1e-1)


def up_to(edge):
    return {lr: "stable" if lr <= edge else "stuck" for lr in LRS}


def paper_like(**options):
    edges = {"post-ln": 0, "deepnorm:deepnet": 1e-3, "pre-ln": 1e-2, "keel": 1e-1}
    return [search_result(scheme, up_to(edge), **options) for scheme, edge in edges.items()]


def test_the_paper_is_in_ascending_order_at_each_depth():
    for layers in (64, 512):
        rates = [by_depth[layers] for by_depth in KEEL_PAPER.values()]
        assert rates == sorted(rates)


def test_schemes_are_compared_by_the_median_of_their_largest_rates():
    def seeds(*edges):
        return [search_result("keel", up_to(edge), seed=seed) for seed, edge in enumerate(edges)]

    assert compare(seeds(1e-3), seeds(1e-2)) == 1
    assert compare(seeds(1e-2), seeds(1e-3)) == -1
    assert compare(seeds(1e-3, 1e-2, 1e-2), seeds(1e-2, 1e-2, 1e-2)) == 0
    assert compare(seeds(1e-1), seeds(1e-1)) is None  # both stand the largest that was tried
    assert compare(seeds(0), seeds(0)) is None  # neither trains
    assert compare(seeds(0), seeds(1e-3)) == 1


def test_the_sentence_counts_settings_and_names_failures():
    said = sentence(group([*paper_like(layers=4), *paper_like(layers=8, warmup_steps=2)]))
    assert said == (
        "The KEEL paper's order, here: post-ln stands less than deepnorm:deepnet in 2 of 2 settings; deepnorm:deepnet "
        "stands less than pre-ln in 2 of 2 settings; pre-ln stands less than keel in 2 of 2 settings. post-ln trains "
        "at no rate in any setting."
    )


def test_the_sentence_says_what_is_undecided_and_where_a_scheme_fails():
    results = [search_result("pre-ln", up_to(1e-1)), search_result("keel", up_to(1e-1)), *paper_like(layers=8)]
    said = sentence(group(results))
    assert "pre-ln stands less than keel in 1 of 2 settings (1 undecided)" in said
    assert "post-ln trains at no rate at 8 layers, no warm-up." in said


def test_without_the_schemes_of_the_paper_the_largest_rate_is_told():
    assert sentence(group([search_result("rezero", up_to(1e-2))])) == (
        "The largest stable rate is 0.01: rezero at 4 layers."
    )
    assert "at least 0.1" in sentence(group([search_result("rezero", up_to(1e-1))]))
    assert sentence(group([search_result("rezero", up_to(0))])) == "Nothing trains at any of these rates."


def test_groups_are_by_depth_then_warm_up():
    results = [
        search_result("keel", up_to(1e-2), layers=layers, warmup_steps=warmup, seed=seed)
        for layers in (8, 4)
        for warmup in (3, 0)
        for seed in (0, 1)
    ]
    groups = group(results)
    assert list(groups) == [Setting(4, 0), Setting(4, 3), Setting(8, 0), Setting(8, 3)]
    assert all(len(schemes["keel"]) == 2 for schemes in groups.values())
    assert Setting(4, 3).text == "4 layers, warm-up 3"


@pytest.mark.parametrize(
    ("edges", "text"),
    [
        ([], "-"),
        ([0], "none"),
        ([1e-2], "0.01"),
        ([1e-1], ">= 0.1"),
        ([1e-2, 1e-3], "0.001 to 0.01"),
        ([0, 1e-2], "none to 0.01"),
        ([1e-2, 1e-1], "0.01 to >= 0.1"),
    ],
)
def test_cells_of_the_edge_table(edges, text):
    assert edge_text([search_result("keel", up_to(edge), seed=seed) for seed, edge in enumerate(edges)]) == text


def test_cells_of_the_loss_table_are_marked_by_the_worst_seed():
    results = [
        search_result("keel", {1e-3: "stable", 1e-2: first, 1e-1: second})
        for first, second in (("stable", "stuck"), ("stuck", "diverges"), ("stable", "diverges"))
    ]
    assert [loss_text(results, lr) for lr in LRS] == ["2.80", "(2.80)", "[7.00]"]


def test_rates_keep_their_digits():
    assert [rate_text(rate) for rate in (1e-4, 3e-4, 0.00765, 0.1)] == ["1.0e-4", "3.0e-4", "0.00765", "0.1"]


@pytest.mark.parametrize("width", [60, 80, 160])
def test_tables_fit_and_name_every_scheme_and_setting(width):
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        print_results([*paper_like(), *paper_like(warmup_steps=2)], console)
    text = capture.get()
    assert max(map(len, text.splitlines())) <= width
    assert text.count("Held-out loss by learning rate") == 2
    for scheme in KEEL_PAPER:
        assert text.count(scheme) >= 3
    assert "0.00765" in text


def test_json_has_every_try_as_a_run_and_the_edge():
    result = search_result("deepnorm:deepnet", up_to(1e-2), layers=8, warmup_steps=2)
    search = json.loads(to_json(to_json_search(result)))
    assert (search["largest_stable_lr"], search["smallest_failing_lr_above"]) == (1e-2, 1e-1)
    assert [one["outcome"] for one in search["outcomes"]] == ["stable", "stable", "stuck"]
    runs = to_json_runs(result)
    assert [run["lr"] for run in runs] == list(LRS)
    assert {"scheme", "rule", "encoder_layers", "decoder_layers", "seed", "losses", "grad_norm_by_branch",
            "nonfinite_step", "seconds", "peak_memory_mib", "outcome"} <= set(runs[0])  # fmt: skip
