import math

import numpy as np
import pytest
import torch
from torch import nn

import kilolayer as kl
from kilolayer.check import examine, train
from kilolayer.check.trials import lead
from kilolayer.diagnosis import Trial
from kilolayer.diagnosis.cards import report
from kilolayer.diagnosis.examined import Examined
from kilolayer.remedies import SharedObjects, judge_trial, prove
from kilolayer.remedies.trial import BY_HAND, in_order

X = torch.randn(96, 12, generator=torch.Generator().manual_seed(3))
Y = X[:, :5].argmax(1)


def build(lr=3.0):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 5))
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    return kl.Setup(model, (X, Y), nn.CrossEntropyLoss(), optimizer=optimizer)


def found_in(setup):
    return Examined(examine(setup, steps=10))


def tried(finding, function=build, steps=60, budget_s=60.0):
    return prove(finding, function, train=train, found=found_in(function()), steps=steps, budget_s=budget_s)


# ---------------------------------------------------------------------- the rule
FALLING = [2.3 * 0.95**step for step in range(60)]


@pytest.mark.parametrize(
    ("before", "after", "helped"),
    [
        ([2.3] * 60, FALLING, True),
        ([2.3] * 60, [2.3] * 60, False),
        ([2.3] * 60, [2.3 - 0.001 * step for step in range(60)], False),  # 3 % lower
        (FALLING, [2.3] * 60, False),
        ([2.3, math.nan], FALLING, True),
        ([2.3, math.nan], [*FALLING[:-1], math.nan], False),
        ([2.3, math.nan], [2.3] * 60, False),  # finite, and learns nothing
        ([2.3] * 60, [9.0] * 30 + [2.0] * 30, True),
        ([2.3] * 60, [1.0] * 60, False),  # starts lower and learns nothing
        ([2.3] * 60, FALLING[:5], False),  # too few steps to tell
        ([-1.0] * 60, [-1.0 - 0.05 * step for step in range(60)], True),
        ([2.3] * 40 + [0.01] * 20, [2.3] * 40 + [0.001] * 20, False),  # both have learned
    ],
    ids=[
        "falls", "alike", "hardly", "worse", "was-nan", "gets-nan", "finite-alone", "falls-late", "lower-start", "short",
        "below-zero", "both-learned",
    ],
)  # fmt: skip
def test_an_edit_helps_where_the_loss_falls_more(before, after, helped):
    assert judge_trial("an edit", before, after).helped is helped


def test_a_difference_within_the_noise_is_none():
    rng = np.random.default_rng(0)
    before = 1 + rng.normal(0, 0.3, 60)
    after = np.linspace(2, 0.7, 60) + rng.normal(0, 0.3, 60)
    quiet = np.linspace(2, 0.7, 60)
    assert judge_trial("an edit", [1.0] * 60, list(quiet)).helped
    assert not judge_trial("an edit", list(before), list(after)).helped


def test_where_the_loss_means_something_else_shares_are_compared():
    before, after = [5.0 - 0.02 * step for step in range(60)], [50.0 * 0.9**step + 4.5 for step in range(60)]
    assert not judge_trial("an edit", before, after).helped
    assert judge_trial("an edit", before, after, changes_loss=True).helped


def test_a_run_that_was_cut_short_is_held_against_the_same_steps():
    trial = judge_trial("an edit", FALLING, FALLING[:30])
    assert trial.steps == 30
    assert trial.loss_before == trial.loss_after
    assert not trial.helped


def trial_of(name, end, start=2.0, helped=True, steps=60):
    return Trial(name, 2.0, end, helped, steps, (2.0,) * steps, (start,) * steps)


def test_the_lowest_loss_stands_first_and_of_equals_the_better_fit():
    trials = [
        trial_of("untried", math.nan, helped=False, steps=0), trial_of("useless", 2.0, helped=False),
        trial_of("worse", 0.5), trial_of("fits", 0.015), trial_of("fits less", 0.001),
    ]  # fmt: skip
    assert [one.name for one in in_order(trials)] == ["fits", "fits less", "worse", "useless", "untried"]


# ---------------------------------------------------------------------- trials
def test_the_best_stands_first_and_three_at_most_are_tried():
    trials = tried(report("lr-too-high", "The rate was set too high."), steps=150)
    assert len([trial for trial in trials if trial.steps]) == 3
    assert trials[0].helped
    assert trials[0].name == "lower learning rate"
    assert [trial.helped for trial in trials] == sorted((trial.helped for trial in trials), reverse=True)


def test_curves_are_of_both_runs_and_start_alike():
    trial = tried(report("lr-too-high", "The rate was set too high."))[0]
    assert len(trial.losses_before) == len(trial.losses_after) == trial.steps == 60
    assert trial.losses_before[0] == trial.losses_after[0]


def test_trials_are_the_same_twice():
    finding = report("lr-too-high", "The rate was set too high.")
    assert tried(finding, steps=15) == tried(finding, steps=15)


def test_a_remedy_that_does_not_help_is_reported_so():
    trials = tried(report("weight-decay-dominates", "It does not."), lambda: _decayed(build(lr=0.01)))
    assert [(trial.helped, trial.steps) for trial in trials] == [(False, 60), (False, 60)]
    assert all(math.isfinite(trial.loss_after) for trial in trials)


def _decayed(setup):
    for group in setup.optimizer.param_groups:
        group["weight_decay"] = 1e-3
    return setup


def test_an_edit_without_a_place_says_why():
    (trial,) = [one for one in tried(report("lr-too-low", "It is."), lambda: build(1e-7)) if not one.steps]
    assert trial.note.startswith("not tried: the best rate")
    assert not trial.helped


def test_what_the_user_alone_can_change_is_named_and_not_tried():
    (trial,) = tried(report("labels-unrelated", "They are."))
    assert BY_HAND in trial.note
    assert trial.steps == 0


def test_an_edit_that_fails_is_reported(monkeypatch):
    def broken(setup, finding, found):
        raise RuntimeError("no such thing")

    remedy = kl.remedies.Remedy("broken", ("lr-too-low",), broken, lambda finding, found: "")
    monkeypatch.setattr("kilolayer.remedies.trial.remedies_for", lambda finding: (remedy,))
    (trial,) = tried(report("lr-too-low", "It is."))
    assert "RuntimeError: no such thing" in trial.note


def test_an_edited_set_up_that_does_not_run_is_reported(monkeypatch):
    def unrunnable(setup, finding, found):
        setup.model[0] = nn.Linear(3, 3)
        return kl.remedies.Edited(setup, "another layer")

    remedy = kl.remedies.Remedy("unrunnable", ("lr-too-low",), unrunnable, lambda finding, found: "")
    monkeypatch.setattr("kilolayer.remedies.trial.remedies_for", lambda finding: (remedy,))
    (trial,) = tried(report("lr-too-low", "It is."))
    assert "does not run" in trial.note


def test_objects_that_the_function_shares_are_never_trained():
    shared = build()
    before = [parameter.detach().clone() for parameter in shared.model.parameters()]
    with pytest.raises(SharedObjects, match="same model"):
        tried(report("lr-too-high", "The rate was set too high."), lambda: shared)
    assert all(torch.equal(one, other) for one, other in zip(shared.model.parameters(), before, strict=True))


# ---------------------------------------------------------------------- in the verdict
def function():
    return build()


def test_check_fills_trials_and_the_best_leads_the_remedy():
    inputs, targets, state = X.clone(), Y.clone(), torch.get_rng_state()
    diagnosis = kl.check(function, steps=60)
    assert diagnosis.root.cause == "lr-too-high"
    best = diagnosis.trials[0]
    assert best.helped
    assert diagnosis.root.remedy.startswith(f"Proven: {best.name} ({best.note})")
    assert diagnosis.findings[0] is diagnosis.root
    assert torch.equal(X, inputs)
    assert torch.equal(Y, targets)
    assert torch.equal(torch.get_rng_state(), state)


def test_no_trial_tries_nothing():
    diagnosis = kl.check(function, trial=False, steps=60)
    assert diagnosis.trials == ()
    assert "trials" not in diagnosis.not_evaluated


def test_a_set_up_without_its_function_has_no_trials_and_says_so():
    diagnosis = kl.check(build(), steps=60)
    assert diagnosis.trials == ()
    assert "pass the function" in diagnosis.not_evaluated["trials"]


def test_a_function_that_shares_its_model_has_no_trials_and_says_so():
    shared = build()
    diagnosis = kl.check(lambda: shared, steps=60)
    assert diagnosis.trials == ()
    assert "same model" in diagnosis.not_evaluated["trials"]


def test_a_healthy_set_up_is_not_tried():
    diagnosis = kl.check(lambda: build(lr=0.01), steps=60)
    assert diagnosis.root is None
    assert diagnosis.trials == ()
    assert "trials" not in diagnosis.not_evaluated


def test_the_remedy_stays_where_nothing_helped():
    finding = report("lr-too-high", "The rate was set too high.")
    assert lead(finding, (Trial("warm-up", 2.0, 2.0, False, 60),)) == finding.remedy
    said = lead(finding, (Trial("clipping", math.nan, 0.5, True, 60, note="clipped"),))
    assert said.startswith("Proven: clipping (clipped), loss not finite -> 0.5 over 60 steps.")
