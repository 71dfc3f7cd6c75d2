import math

import numpy as np
import pytest
import torch
from torch import nn

from kilolayer.monitor import Monitor
from kilolayer.monitor.scalars import to_scalar


@pytest.mark.parametrize(
    "value",
    [2.5, np.float32(2.5), np.array([2.5]), torch.tensor(2.5), torch.tensor([[2.5]], requires_grad=True)],
    ids=["float", "numpy", "array", "tensor", "one-element tensor with a graph"],
)
def test_one_number_in_any_clothing(value):
    assert to_scalar("loss", value) == 2.5


def test_whole_numbers_truth_values_and_non_finite_ones_are_numbers():
    assert [to_scalar("n", value) for value in (3, True, math.inf)] == [3.0, 1.0, math.inf]
    assert math.isnan(to_scalar("n", torch.tensor(math.nan)))


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (None, TypeError, r"log\(acc=\.\.\.\) needs a real number, got None \(NoneType\); did the function"),
        ("0.5", TypeError, r"log\(acc=\.\.\.\) needs a real number, got '0.5' \(str\)"),
        ([0.5], TypeError, r"got \[0.5\] \(list\)"),
        (1j, TypeError, "got 1j"),
        (torch.tensor(1j), TypeError, r"got 1j \(complex\)"),
        (np.array("a"), TypeError, r"got 'a' \(str\)"),
        (torch.ones(2, 3), ValueError, r"log\(acc=\.\.\.\) needs one number, got a tensor of shape \(2, 3\)"),
        (torch.ones(0), ValueError, r"shape \(0,\)"),
        (np.ones(4), ValueError, r"got an? array of shape \(4,\)"),
        ("x" * 500, TypeError, r"\.\.\. \(str\)"),
    ],
)
def test_what_is_no_number_is_named(value, error, message):
    with pytest.raises(error, match=message):
        to_scalar("acc", value)


def test_a_bad_value_leaves_the_recording_as_it_was():
    model = nn.Linear(2, 1)
    with Monitor(model, every=1) as monitor:
        model(torch.ones(1, 2)).sum().backward()
        monitor.log(loss=1.0)
        with pytest.raises(TypeError, match="acc"):
            monitor.log(loss=2.0, acc="high")
        monitor.end_step()
    assert monitor.recording.series("run", "run", "loss")[1].tolist() == [1.0]
    assert not monitor.recording.has("run", "acc")


def test_the_last_value_of_a_name_counts_and_closed_is_closed():
    model = nn.Linear(2, 1)
    with Monitor(model, every=1) as monitor:
        model(torch.ones(1, 2)).sum().backward()
        monitor.log(loss=1.0)
        monitor.log(loss=2.0)
        monitor.end_step()
        monitor.log(accuracy=0.75)
    assert monitor.recording.series("run", "run", "loss")[1].tolist() == [2.0]
    assert monitor.recording.series("run", "run", "accuracy")[0].tolist() == [1]
    with pytest.raises(RuntimeError, match="closed"):
        monitor.log(loss=1.0)
