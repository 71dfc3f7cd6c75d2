"""Each kind of fault has its cause named, and odd but healthy set-ups are left alone."""

import pytest
from check_kinds import KINDS

import kilolayer as kl


@pytest.mark.parametrize("name", KINDS)
def test_the_cause_is_named_or_nothing_is_said(name):
    build, causes = KINDS[name]
    diagnosis = kl.check(build, trial=False, steps=60)
    cause = None if diagnosis.root is None else diagnosis.root.cause
    assert cause in (causes or (None,)), [finding.cause for finding in diagnosis.findings]
    assert diagnosis.unexplained is None
