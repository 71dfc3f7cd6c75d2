"""Causes that share their remedies with others: one of those is proven for each."""

import pytest
from remedy_faults import HELPS, MENDED

from kilolayer.check import examine, train
from kilolayer.diagnosis.examined import Examined
from kilolayer.remedies import REMEDIES, prove

LONG = {"attention-logits-growing", "output-logits-drifting", "stack-starved"}
"""What takes thousands of steps to show, or is a matter of two stacks."""


def test_every_cause_with_an_edit_has_a_set_up():
    with_edit = {cause for remedy in REMEDIES if remedy.edit is not None for cause in remedy.causes}
    assert with_edit == LONG | set(MENDED) | {fault.cause for fault in HELPS.values()}


@pytest.mark.parametrize("cause", MENDED)
def test_one_of_the_remedies_is_proven(cause):
    fault = MENDED[cause]
    found = Examined(examine(fault.build(), steps=12))
    trials = prove(fault.finding(), fault.build, train=train, found=found, steps=fault.steps, budget_s=60)
    assert any(trial.helped for trial in trials), [(trial.name, trial.loss_after, trial.note) for trial in trials]
