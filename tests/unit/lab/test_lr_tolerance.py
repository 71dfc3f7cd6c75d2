import itertools
import math

import pytest

from kilolayer.lab.depth_run import DepthRun
from kilolayer.lab.lr_tolerance import BELOW_FREQUENCIES, DEFAULT_LRS, RISE, WINDOW, Edge, Search, find_edge, judge

BASE = DepthRun("keel", 0, 4, num_steps=10)


def carry_out(search, outcome_at):
    """Rates in the order tried, with their outcomes."""
    outcomes = {}
    while (lr := search.next_lr(outcomes)) is not None:
        assert lr not in outcomes
        outcomes[lr] = outcome_at(lr)
    return outcomes


@pytest.mark.parametrize("edge", [5e-4, 2e-3, 0.0171, 0.05, 0.25])
@pytest.mark.parametrize("refinements", [0, 1, 2, 5])
def test_bisection_closes_in_on_the_edge(edge, refinements):
    search = Search(BASE, refinements=refinements)
    outcomes = carry_out(search, lambda lr: "stable" if lr <= edge else "diverges")
    assert list(outcomes)[: len(DEFAULT_LRS)] == list(DEFAULT_LRS)
    assert len(outcomes) == len(DEFAULT_LRS) + refinements
    found = find_edge(outcomes)
    assert found.highest <= edge < found.lowest_above
    widest = max(high / low for low, high in itertools.pairwise(DEFAULT_LRS))
    assert found.lowest_above / found.highest <= widest ** (0.5**refinements) * (1 + 1e-9)


@pytest.mark.parametrize("outcome", ["stable", "stuck"])
def test_nothing_is_bisected_without_an_edge(outcome):
    assert list(carry_out(Search(BASE), lambda lr: outcome)) == list(DEFAULT_LRS)


def test_rates_too_small_to_get_anywhere_do_not_count_as_failures():
    outcomes = {1e-4: "stuck", 1e-3: "stuck", 1e-2: "stable", 1e-1: "stuck"}
    assert find_edge(outcomes) == Edge(1e-2, 1e-1)


def test_the_edge_is_where_stability_first_ends():
    outcomes = {1e-1: "stable", 1e-3: "stable", 1e-2: "diverges"}
    assert find_edge(outcomes) == Edge(1e-3, 1e-2)
    assert find_edge({1e-3: "stable"}) == Edge(1e-3, None)
    assert find_edge({}) == find_edge({1e-3: "diverges"}) == Edge(None, None)


def result(losses, held_out, nonfinite_step=None):
    return {"losses": losses, "held_out_loss": held_out, "nonfinite_step": nonfinite_step, "frequency_loss": 3.1}


FALLING = [4.5 - 1.7 * step / 59 for step in range(60)]


def test_a_run_that_learned_context_is_stable():
    assert judge(result(FALLING, 2.8)) == "stable"
    assert judge(result(FALLING, 3.1 - BELOW_FREQUENCIES - 1e-6)) == "stable"


@pytest.mark.parametrize("held_out", [3.1 - BELOW_FREQUENCIES + 1e-6, 3.1, 3.2, 4.0])
def test_a_run_that_did_not_is_stuck(held_out):
    assert judge(result(FALLING, held_out)) == "stuck"


@pytest.mark.parametrize(
    "broken",
    [
        result([4.5, math.nan], math.nan, nonfinite_step=1),
        result(FALLING, math.inf),
        result([*FALLING, *[FALLING[-1] + 2 * RISE] * WINDOW], 2.9),  # fell, and came back up
        result([4.5] + [5.0] * 30, 2.9),  # never fell
    ],
)
def test_a_loss_that_is_not_finite_or_rises_diverges(broken):
    assert judge(broken) == "diverges"


def test_the_noise_of_batches_is_no_divergence():
    noisy = [loss + 0.15 * (-1) ** step for step, loss in enumerate(FALLING + [FALLING[-1]] * 40)]
    assert judge(result(noisy, 2.8)) == "stable"


def test_a_run_is_the_base_at_a_rate():
    search = Search(BASE)
    assert search.at(0.5).lr == 0.5
    assert (search.at(0.5).scheme, search.at(0.5).decoder_layers) == ("keel", 4)
    assert search.num_steps == 10 * (len(DEFAULT_LRS) + 2)


def test_searches_have_folders_of_their_own():
    bases = [
        DepthRun(scheme, 0, layers, seed=seed, warmup_steps=warmup)
        for scheme in ("keel", "deepnorm:deepnet")
        for layers in (4, 8)
        for seed in (0, 1)
        for warmup in (0, 5)
    ]
    names = [Search(base).folder_name for base in bases]
    assert len(set(names)) == len(bases)
    assert not any(set(name) & set(":/ ") for name in names)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lrs": (1e-3,)}, "lr needs two different rates or more, got 0.001"),
        ({"lrs": (1e-2, 1e-3)}, "lr needs two different rates"),
        ({"lrs": (1e-3, 1e-3)}, "lr needs two different rates"),
        ({"lrs": (0.0, 1e-3)}, "lr must be a positive number, got 0"),
        ({"lrs": (1e-3, math.inf)}, "lr must be a positive number, got inf"),
        ({"refinements": -1}, "refinements must be >= 0, got -1"),
    ],
)
def test_bad_searches(change, message):
    with pytest.raises(ValueError, match=message):
        Search(BASE, **change)
