"""What the rules read of an examination: outcome, progress, chains; and that no rule knows a model."""

import dataclasses
import inspect
import math

import numpy as np
import pytest

from kilolayer.diagnosis import EXAMINED_RULES, Trial, diagnose
from kilolayer.diagnosis.cards import BY_CAUSE, CARDS, report
from kilolayer.diagnosis.chains import Chain, chains_of
from kilolayer.diagnosis.examined import Examined, final_of
from kilolayer.diagnosis.finding import Finding
from kilolayer.diagnosis.outcome import describe_doubt
from kilolayer.diagnosis.rules_run import loss_spike, lr_too_high
from kilolayer.diagnosis.rules_stream import post_norm_too_deep
from kilolayer.recording import RecordingWriter


def examined(losses=(), *, start=2.3, baseline=2.3, chance=2.3, nonfinite_step=None, **facts):
    """An examination in which nothing stands out, with the losses given."""
    loss = {"kind": "nll", "own": start, "baseline": baseline, "chance": chance, "num_classes": 10, "class_dim": 1,
            "normalized_dims": [1], "shape": [32, 10], "low": -3.0, "high": -1.0, "done": [{"operation": "log_softmax"}]}  # fmt: skip
    run = {"losses": list(losses), "nonfinite_step": nonfinite_step, "num_steps": len(losses), "stale_gradients": [],
           "unclipped_grad_norm": [1.0], "clipped_grad_norm": [1.0], "swallowed_updates": {}, "nonfinite_update": None,
           "batches": None, "is_cut_short": False}  # fmt: skip
    step0 = {"loss": start, "layers": [], "activations": [], "softmaxes": [], "sums": [], "branches": [], "losses": [loss],
             "stretches": [], "outputs": []}  # fmt: skip
    writer = RecordingWriter()
    writer.facts["examination"] = {
        "format": 1,
        "parameters": [],
        "unregistered": [],
        "optimizer": {"name": "SGD", "groups": [{"lr": 0.1}], "num_foreign": 0},
        "inputs": [],
        "targets": [],
        "loss": {"value": start, "has_graph": True, "constant": None},
        "fault": None,
        "step0": step0,
        "structure": {"branches": [], "chains": [], "chain_norms": [], "depth_fits": [], "recurrences": []},
        **({"run": run} if len(losses) else {}),
        **facts,
    }
    return writer.close()


FALLS = np.linspace(2.3, 0.1, 50).tolist()


@pytest.mark.parametrize(
    ("losses", "options", "outcome"),
    [
        (FALLS, {}, "learns"),
        ([2.3] * 50, {}, "stuck"),
        (np.linspace(2.3, 1.7, 50).tolist(), {}, "slow"),
        (np.linspace(2.3, 9.0, 50).tolist(), {}, "diverged"),
        ([2.3, 5.0, None], {"nonfinite_step": 2}, "non-finite"),
        # From a huge start down to chance is no learning.
        ([1e6, 1e3, *[2.3] * 48], {"start": 1e6}, "stuck"),
        # A model that was trained before need not get much better, but not worse.
        (np.linspace(0.8, 0.7, 50).tolist(), {"start": 0.8}, "learns"),
        (np.linspace(0.8, 1.7, 50).tolist(), {"start": 0.8}, "diverged"),
        # A loss that may be negative has no scale of its own.
        (np.linspace(-0.1, -3.0, 50).tolist(), {"start": -0.1, "baseline": None, "chance": None}, "learns"),
        ([], {}, None),
    ],
    ids=["learns", "stuck", "slow", "diverged", "nan", "from-afar", "fine-tune", "spoiled", "negative", "no-run"],
)
def test_outcomes(losses, options, outcome):
    assert Examined(examined(losses, **options)).outcome == outcome


def test_a_summed_loss_is_held_against_a_summed_answer():
    record = examined(np.linspace(230.0, 5.0, 50).tolist(), start=230.0)
    record.facts["examination"]["step0"]["losses"][0]["own"] = 2.3
    assert Examined(record).baseline == pytest.approx(230.0)
    assert Examined(record).outcome == "learns"


def test_a_short_run_that_was_still_falling_tells_nothing():
    falling, flat = np.linspace(2.3, 2.0, 30).tolist(), [2.3] * 30
    assert Examined(examined(falling)).outcome == "unfinished"
    assert not Examined(examined(falling)).fails
    assert Examined(examined(flat)).outcome == "stuck"
    assert Examined(examined(np.linspace(2.3, 2.0, 100).tolist())).outcome == "slow"


def test_the_final_loss_is_no_single_step():
    losses = np.array([1.0] * 30)
    losses[-1] = 50.0
    assert final_of(losses) == 1.0
    assert math.isnan(final_of(np.array([1.0, math.nan])))


def test_nothing_is_found_where_nothing_stands_out():
    assert diagnose(examined(FALLS)).findings == ()
    still = diagnose(examined([2.3] * 50))
    assert still.root is None
    assert {"lr_too_high", "lr_too_low", "labels_unrelated"} <= set(still.not_evaluated)


def layer(index, previous=None, *, gain=2.0, rms=1.0, via=None, grad=1.0, **more):
    row = {"index": index, "path": f"net.{index}", "weight": f"net.{index}.weight", "call": 0, "kind": "linear",
           "fan_in": 8, "fan_out": 8, "weight_rms": (gain / 8) ** 0.5, "gain": gain, "in_rms": rms * math.sqrt(0.5),
           "rms": rms, "std": rms, "cosine": 0.5, "sample_std": rms, "numel": 64, "grad_rms": grad, "previous": previous,
           "via": via or ("input" if previous is None else "layer"), "between": ["relu"], "norm_before": None,
           "norm_after": None, "activation": "relu", "into": "relu"}  # fmt: skip
    return row | more


def test_chains_run_from_layer_to_layer_and_end_at_sums():
    rows = [layer(0), layer(1, 0), layer(2, 1), layer(3, None, via="sum"), layer(4, 3)]
    chains = chains_of({"layers": rows})
    assert [chain.sites for chain in chains] == [["net.0", "net.1", "net.2"], ["net.3", "net.4"]]


def test_of_two_ways_on_the_longer_is_the_chain():
    rows = [layer(0), layer(1, 0), layer(2, 0), layer(3, 2), layer(4, 3)]
    assert chains_of({"layers": rows})[0].sites == ["net.0", "net.2", "net.3", "net.4"]


@pytest.mark.parametrize(("gain", "rate"), [(2.0, 1.0), (1.0, math.sqrt(0.5)), (1 / 3, math.sqrt(1 / 6)), (8.0, 2.0)])
def test_rates_of_a_relu_chain_are_those_of_the_theory(gain, rate):
    rows = [layer(i, i - 1 if i else None, gain=gain, rms=rate**i, grad=rate ** (6 - i), in_rms=rate ** (i - 1) * math.sqrt(0.5))
            for i in range(6)]  # fmt: skip
    chain = Chain(rows)
    assert chain.weight_rate == pytest.approx(rate)
    assert chain.forward_rate == pytest.approx(rate)
    assert chain.backward_rate == pytest.approx(rate)
    assert chain.gradient_left == pytest.approx(rate**4)


def test_every_card_has_a_code_a_cause_and_a_reference_of_its_own():
    assert len({card.code for card in CARDS}) == len({card.cause for card in CARDS}) == len(CARDS)
    for card in CARDS:
        assert card.formula
        assert card.remedy.endswith((".", "?"))
        assert card.reference
        finding = report(card.cause, "Something was seen.", sites=["a", "b"], rivals=[("lr-too-high", "no")])
        assert (finding.code, finding.first_site, finding.last_site) == (card.code, "a", "b")
        assert finding.rivals[0].cause in BY_CAUSE


def test_every_rule_has_a_card_and_knows_no_case():
    names = {card.cause.replace("-", "_") for card in CARDS}
    sources = "".join(inspect.getsource(inspect.getmodule(rule)) for rule in EXAMINED_RULES)
    parts = {"norm_over_one", "norm_on_skips", "norm_behind_some"}  # of norm-misplaced, at places of their own in line
    assert {rule.__name__ for rule in EXAMINED_RULES} - parts <= names
    for word in ("case_", "seed", "expected.json", "broken =", "import torch", "Transformer"):
        assert word not in sources


def test_a_trial_survives_strict_json():
    trial = Trial("he", math.nan, 0.1, True, 2, (2.3, math.nan), (2.3, 0.1))
    fields = trial.to_dict()
    assert fields["loss_before"] is None
    assert fields["curves"] == {"before": [2.3, None], "after": [2.3, 0.1]}


FLAT, RISES = [2.3] * 60, np.linspace(2.3, 9.0, 60).tolist()


@pytest.mark.parametrize(
    ("losses", "options", "outcome", "said"),
    [
        (FLAT, {}, "stuck", "stays at 2.3, where the best answer that does not look at the input has 2.3, and no rule"),
        (FLAT, {"baseline": None, "chance": None}, "stuck", "stays at 2.3, and no rule explains it."),
        (RISES, {}, "diverged", "rises from 2.3 to 8.72"),
        ([2.3, 2.2, None], {"nonfinite_step": 2}, "non-finite", "is not finite at step 2"),
    ],
    ids=["stuck", "stuck-no-baseline", "diverged", "nan"],
)
def test_a_failure_without_a_rule_is_said(losses, options, outcome, said):
    verdict = diagnose(examined(losses, **options))
    assert verdict.root is None
    assert said in verdict.unexplained
    assert (verdict.outcome, verdict.severity) == (outcome, "warning")
    assert [verdict.is_at_least(severity) for severity in ("info", "warning", "error")] == [True, True, False]
    assert {"outcome": outcome, "unexplained": verdict.unexplained}.items() <= verdict.to_dict().items()


@pytest.mark.parametrize(
    ("losses", "outcome", "doubt"),
    [
        (FALLS, "learns", None),
        (np.linspace(2.3, 1.7, 60).tolist(), "slow", "The loss falls from 2.3 to 1.73 only."),
        ([2.3] * 20, "stuck", "The loss stays at 2.3, and 20 steps cannot say more."),
        (np.linspace(2.3, 2.0, 30).tolist(), "unfinished", "The loss was still falling when the run ended, from 2.3"),
        ([], None, None),
    ],
    ids=["learns", "slow", "short", "unfinished", "no-run"],
)
def test_a_run_that_does_not_fail_is_no_warning(losses, outcome, doubt):
    verdict = diagnose(examined(losses))
    assert (verdict.root, verdict.unexplained, verdict.severity, verdict.outcome) == (None, None, None, outcome)
    assert not verdict.is_at_least("info")
    said = describe_doubt(Examined(examined(losses)))
    assert said == doubt if doubt is None else said.startswith(doubt)


def test_an_unknown_severity_is_refused():
    with pytest.raises(ValueError, match="use one of info, warning, error"):
        diagnose(examined()).is_at_least("fatal")


def test_an_explained_failure_has_the_severity_of_its_root():
    found = dataclasses.replace(diagnose(examined(FLAT)), root=report("gradient-cut", "So it is."))
    assert found.severity == BY_CAUSE["gradient-cut"].severity


def warmed_up(*, ratio, rates):
    """A stuck run whose learning rate went up to its end, with one weight matrix and its last update ratio."""
    record = examined(FLAT, parameters=[{"name": "w", "is_trainable": True, "shape": [4, 4], "rms": 1.0}])
    writer = RecordingWriter()
    writer.facts.update(record.facts)
    for step, rate in rates:
        writer.add(step, "run", "run", "lr", rate)
    for step in (0, 40):
        writer.add(step, "w", "update", "update_ratio", ratio)
    return Examined(writer.close())


RISING = [(step, 1e-6 * (step + 1)) for step in range(60)]


def test_a_run_that_ends_early_in_its_warm_up_tells_nothing():
    assert warmed_up(ratio=1e-5, rates=RISING).outcome == "unfinished"
    # Weights that move, a rate that no longer rises and a constant one are no excuse.
    assert warmed_up(ratio=5e-3, rates=RISING).outcome == "stuck"
    assert warmed_up(ratio=1e-5, rates=RISING[:30]).outcome == "stuck"
    assert warmed_up(ratio=1e-5, rates=[(0, 1e-6)]).outcome == "stuck"
    assert "learning rate is still so low" in describe_doubt(warmed_up(ratio=1e-5, rates=RISING))


@pytest.mark.parametrize(
    ("other", "cause"),
    [(FALLS, "lr-too-high"), (FLAT, None), (np.linspace(2.3, 1.9, 60).tolist(), None)],
    ids=["learns", "stuck-too", "slow"],
)
def test_a_lower_rate_that_learns_shows_that_the_rate_is_too_high(other, cause):
    record = warmed_up(ratio=5e-3, rates=[(0, 1e-3)]).recording
    record.facts["examination"]["other_rates"] = [{"factor": 0.1, "losses": other, "nonfinite_step": None}]
    finding = lr_too_high(Examined(record))
    assert (None if finding is None else finding.cause) == cause


def post_norm_sums(*, cosine=0.6, first_grad=1e-3, number=24):
    """Sums with a norm behind each, both sides of a size; the gradient of the first quarter as given."""
    row = {"chain": 0, "norm_placement": "post", "norm_kind": "layer", "skip_scale": 1.0, "branch_scale": 1.0,
           "is_learned": False, "attention": None, "activations": [], "kind": "mlp", "skip_rms": 1.0, "branch_rms": 1.0,
           "sum_rms": 2**0.5, "cosine": cosine, "grad_rms": 1e-3}  # fmt: skip
    return [
        row | {"index": i, "path": f"layers.{i}", "branch_grad_rms": first_grad if i < number // 4 else 1e-3}
        for i in range(number)
    ]


def falling(last):
    return np.linspace(2.3, last, 60)


def leveling_off(last):
    return last + (2.3 - last) * np.exp(-np.arange(60) / 10)


@pytest.mark.parametrize(
    ("losses", "end", "is_named"),
    [
        pytest.param(falling(1.5), {}, False, id="gets somewhere, and everything arrives"),
        pytest.param(falling(1.5), {"cosine": 0.99}, True, id="gets somewhere, samples alike"),
        pytest.param(falling(1.5), {"first_grad": 1e-8}, True, id="gets somewhere, gradients lost"),
        pytest.param(leveling_off(1.7), {}, True, id="got somewhere, and no further"),
        pytest.param(falling(2.29), {}, True, id="gets nowhere"),
    ],
)
def test_post_norm_that_gets_somewhere_is_too_deep_only_where_something_is_lost(losses, end, is_named):
    record = examined(losses.tolist(), end={"branches": post_norm_sums(**end), "parameters": []})
    facts = record.facts["examination"]
    facts["step0"]["branches"] = post_norm_sums()
    facts["structure"] |= {"chains": [list(range(24))], "chain_norms": ["layer"]}
    finding = post_norm_too_deep(Examined(record))
    assert (finding is not None) == is_named


NOISE = np.random.default_rng(0).exponential(1.0, 100)


def noisy(level):
    return (NOISE * level).tolist()


@pytest.mark.parametrize(
    ("losses", "facts", "outcome"),
    [
        # A loss that still falls from afar is not stuck, though the best answer without a look is as good so far.
        (np.geomspace(44.0, 26.0, 100).tolist(), {"start": 44.0, "baseline": 26.5}, "slow"),
        # Single samples: the first happened to be an easy one.
        (noisy(np.linspace(4, 0.4, 100)), {"start": 0.02, "baseline": 0.0, "has_fresh_batches": True}, "learns"),
        (noisy(np.full(100, 4.0)), {"start": 0.02, "baseline": 0.0, "has_fresh_batches": True}, "stuck"),
        # One batch of one label: no answer without a look is better than perfect.
        (FALLS, {"baseline": 0.0}, "learns"),
        # The loop returns the sum of two losses, and the set-up knows one.
        (np.linspace(1.4, 1.0, 100).tolist(), {"start": 0.7, "baseline": 0.0, "has_own_loop": True}, "slow"),
        (np.linspace(1.4, 9.0, 100).tolist(), {"start": 0.7, "baseline": 0.0, "has_own_loop": True}, "diverged"),
    ],
    ids=["falls-on", "noisy-learns", "noisy-stuck", "one-label", "two-losses", "two-losses-rise"],
)
def test_outcomes_of_losses_whose_start_or_floor_says_little(losses, facts, outcome):
    assert Examined(examined(losses, **{"chance": None} | facts)).outcome == outcome


def test_the_answer_to_beat_is_that_of_all_data_where_every_batch_is_another():
    record = examined(FALLS, baseline=0.0)
    facts = record.facts["examination"]
    facts["has_fresh_batches"] = True
    for num_targets, expected in ((1, 2.3), (90, 9 / 180)):
        facts["step0"]["losses"][0]["num_targets"] = num_targets
        assert Examined(record).baseline == pytest.approx(expected)
    facts["step0"]["losses"][0] |= {"kind": "mse", "baseline": 1.8, "shape": [10, 1]}
    assert Examined(record).baseline == pytest.approx(2.0)
    facts["step0"]["losses"][0]["shape"] = [4, 1]
    assert Examined(record).baseline is None


@pytest.mark.parametrize(("end", "is_named"), [(0.8, False), (2.2, True)], ids=["comes-back", "stays"])
def test_a_spike_is_named_where_the_loss_does_not_come_back(end, is_named):
    before = np.linspace(2.3, 0.6, 60)
    losses = [*before, 7.8, *np.geomspace(3.0, end, 39)]
    assert (loss_spike(Examined(examined(losses))) is not None) == is_named


def test_large_skips_in_front_of_norms_are_counted_as_large():
    sums = [row | {"skip_scale": 2.0, "branch_rms": 0.1, "sum_rms": 2.0} for row in post_norm_sums()]
    record = examined([2.3] * 60, end={"branches": sums, "parameters": []})
    facts = record.facts["examination"]
    facts["step0"]["branches"] = sums
    facts["structure"] |= {"chains": [list(range(24))], "chain_norms": ["layer"]}
    assert not isinstance(post_norm_too_deep(Examined(record)), Finding)
