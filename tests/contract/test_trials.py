"""What every remedy of the registry keeps to: it mends a set-up with its fault, and nobody else's objects change."""

import ast
import functools

import pytest
import torch
from remedy_faults import HELPS

from kilolayer.check import examine, train
from kilolayer.diagnosis.cards import BY_CAUSE
from kilolayer.diagnosis.examined import Examined
from kilolayer.remedies import REMEDIES, Unsuitable, judge_trial, remedies_for

BY_NAME = {remedy.name: remedy for remedy in REMEDIES}
APART = {"z-loss", "learning rate by update ratio"}
"""In unit tests: what the one keeps from happening takes thousands of steps, the other needs other rates tried."""

EDITING = [remedy.name for remedy in REMEDIES if remedy.edit is not None and remedy.name not in APART]

every_edit = pytest.mark.parametrize("name", EDITING)


@functools.cache
def examined(build):
    return Examined(examine(build(), steps=12))


@functools.cache
def untouched(build, steps):
    torch.manual_seed(0)
    return train(build(), steps).losses


def state(setup):
    """Everything a remedy might touch, as values."""
    options = [
        {key: value for key, value in group.items() if key != "params"} for group in setup.optimizer.param_groups
    ]
    tensors = [*setup.model.state_dict().values(), *[one for one in setup.batch if isinstance(one, torch.Tensor)]]
    hooks = [(len(one._forward_hooks), len(one._forward_pre_hooks)) for one in setup.model.modules()]
    return (
        options,
        [tensor.detach().clone() for tensor in tensors],
        hooks,
        len(setup.optimizer._optimizer_step_pre_hooks),
    )


def test_names_are_unique():
    assert len(BY_NAME) == len(REMEDIES)


def test_every_edit_has_a_set_up_that_it_mends():
    assert set(HELPS) == set(EDITING)


@every_edit
def test_the_set_up_is_of_a_cause_the_remedy_answers(name):
    assert BY_NAME[name] in remedies_for(HELPS[name].finding())


@pytest.mark.parametrize("cause", sorted({cause for remedy in REMEDIES for cause in remedy.causes} & set(BY_CAUSE)))
def test_every_cause_with_a_card_is_answered_by_its_name(cause):
    assert any(cause in remedy.causes for remedy in REMEDIES)


def test_every_card_has_a_remedy():
    answered = {cause for remedy in REMEDIES for cause in remedy.causes}
    assert not set(BY_CAUSE) - answered


@every_edit
def test_the_loss_falls_with_it_and_not_without(name):
    fault = HELPS[name]
    found = examined(fault.build)
    torch.manual_seed(0)
    edited = BY_NAME[name].edit(fault.build(), fault.finding(), found)
    assert edited.what
    torch.manual_seed(0)
    after = train(edited.setup, fault.steps).losses
    before = untouched(fault.build, fault.steps)
    trial = judge_trial(name, before, after, changes_loss=BY_NAME[name].changes_loss)
    assert trial.helped, (trial.loss_before, trial.loss_after)


@every_edit
def test_another_set_up_of_the_same_function_is_left_alone(name):
    fault = HELPS[name]
    bystander = fault.build()
    before = state(bystander)
    edited = BY_NAME[name].edit(fault.build(), fault.finding(), examined(fault.build))
    train(edited.setup, 2)
    options, tensors, hooks, num_hooks = state(bystander)
    assert (options, hooks, num_hooks) == (before[0], before[2], before[3])
    assert all(
        torch.equal(one, other) or bool(one.isnan().any()) for one, other in zip(tensors, before[1], strict=True)
    )


@pytest.mark.parametrize("name", [remedy.name for remedy in REMEDIES])
def test_there_is_a_change_of_code(name):
    remedy = BY_NAME[name]
    fault = HELPS.get(name) or HELPS["zero_grad"]
    code = remedy.patch(fault.finding(), examined(fault.build))
    assert code.strip()
    ast.parse(code)


@every_edit
def test_where_it_has_no_place_it_says_so_or_runs(name):
    """On a healthy set-up of another kind an edit either refuses, in a sentence, or leaves a set-up that runs."""
    finding, found = HELPS[name].finding(), examined(HELPS["zero_grad"].build)
    try:
        edited = BY_NAME[name].edit(HELPS["zero_grad"].build(), finding, found)
    except Unsuitable as reason:
        said = str(reason)
    else:
        said = edited.what
        assert train(edited.setup, 2).nonfinite_step is None
    assert said
