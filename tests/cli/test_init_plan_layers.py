"""One layer of each kind stands for all of them: the plan is that of the whole model."""

import dataclasses
import itertools

import pytest

from kilolayer.cli.init_plan_layers import Run, build_on_meta, find_runs, plan_deep
from kilolayer.init import plan_init
from kilolayer.schemes import RULE_NAMES, SCHEMES, Depth, get_scheme

PLANNED = [scheme for scheme in SCHEMES if not scheme.needs_profile]
PLANNED += [get_scheme("deepnorm", rule=rule) for rule in RULE_NAMES[1:]]


@pytest.mark.parametrize("depth", [(5, 0), (0, 4), (3, 5)], ids=str)
@pytest.mark.parametrize("scheme", PLANNED, ids=lambda scheme: f"{scheme.name}-{scheme.rule}")
def test_the_rows_are_those_of_the_whole_model(scheme, depth):
    deep = plan_deep(scheme, Depth(*depth), width=16, base="lecun")
    whole = plan_init(build_on_meta(*depth, scheme=scheme, width=16), scheme, base="lecun")
    assert [dataclasses.replace(row, parameter=name) for name, row in deep.rows()] == list(whole.rows)


@pytest.mark.parametrize("scheme", PLANNED, ids=lambda scheme: f"{scheme.name}-{scheme.rule}")
def test_runs_cover_a_stack_in_order_and_neighbors_differ(scheme):
    runs = find_runs(scheme, Depth(encoder_layers=12, decoder_layers=7), "decoder")
    assert [layer for run in runs for layer in range(run.first, run.last + 1)] == list(range(7))
    assert all(one.kind != other.kind for one, other in itertools.pairwise(runs))


def test_kinds_come_back_under_their_number():
    scheme = get_scheme("mix-ln")
    runs = find_runs(scheme, Depth(encoder_layers=8), "encoder")
    assert [(run.span, run.kind) for run in runs] == [("0..1", 0), ("2..7", 1)]
    assert Run(3, 3, 0).span == "3"


def test_a_plan_of_many_layers_holds_few_kinds():
    plan = plan_deep(get_scheme("deepnorm", rule="article"), Depth(decoder_layers=20_000), width=8, base="xavier")
    assert {row.parameter.split(".")[2] for row in plan.kinds.rows if ".layers." in row.parameter} == {"0", "1"}
    assert any(row.parameter.startswith("decoder.layers.0..19998.") for row in plan.folded().rows)
    assert any(row.parameter.startswith("decoder.layers.19999.") for row in plan.folded().rows)
