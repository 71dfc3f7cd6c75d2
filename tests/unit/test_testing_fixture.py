"""The fixture for test suites: what passes, what fails and how, and what is written of it."""

import pytest

pytest_plugins = ["pytester"]

SUITE = """
import torch
from torch import nn

def build(lr=0.05, maximize=False, head=True):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 4))
    x = torch.randn(48, 8)
    held = model.parameters() if head else model[0].parameters()
    optimizer = torch.optim.SGD(held, lr=lr, momentum=0.9, maximize=maximize)
    return model, x, x[:, :4].argmax(1), nn.CrossEntropyLoss(), optimizer

def test_trains(assert_trainable):
    assert assert_trainable(build, steps=60).outcome == "learns"

def test_headless(assert_trainable):
    assert_trainable(lambda: build(head=False), steps=20)

def test_uphill(assert_trainable):
    assert_trainable(lambda: build(lr=0.01, maximize=True), steps=60)

def test_uphill_is_no_error(assert_trainable):
    assert_trainable(lambda: build(lr=0.01, maximize=True), steps=60, fail_on="error")
"""


@pytest.fixture
def suite(pytester):
    pytester.makeconftest('pytest_plugins = ["kilolayer.testing"]')
    pytester.makepyfile(SUITE)
    return pytester


def test_a_suite_fails_where_a_set_up_does_not_train(suite):
    # In a process of its own: an inner run within this one would load torch twice.
    result = suite.runpytest_subprocess("-p", "no:cacheprovider", "--junit-xml=seen.xml")
    result.assert_outcomes(passed=2, failed=2)
    text = result.stdout.str()
    assert "AssertionError: error SET501 parameters-not-optimized at 2.weight" in text
    assert "AssertionError: warning: The loss rises from" in text
    # Of the library no line is shown, only the user's own.
    assert "_fail_on" not in text
    properties = (suite.path / "seen.xml").read_text()
    assert 'name="kilolayer_outcome" value="learns"' in properties
    assert 'name="kilolayer_cause" value="parameters-not-optimized"' in properties
