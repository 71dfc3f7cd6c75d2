from itertools import pairwise

import pytest

from kilolayer.monitor import EverySteps, FirstSteps, LogSpaced
from kilolayer.monitor.schedule import resolve_schedule


def sampled(schedule, num_steps):
    return [step for step in range(num_steps) if schedule(step)]


def test_every_steps():
    assert sampled(EverySteps(4), 10) == [0, 4, 8]


def test_first_steps_then_each_or_none():
    assert sampled(FirstSteps(3, then=5), 12) == [0, 1, 2, 5, 10]
    assert sampled(FirstSteps(2), 100) == [0, 1]


@pytest.mark.parametrize("per_decade", [1, 3, 10])
def test_log_spaced_takes_the_powers_of_ten_and_as_many_steps_in_each_decade(per_decade):
    steps = sampled(LogSpaced(per_decade), 100_001)
    assert {0, 1, 10, 100, 1000, 10_000, 100_000} <= set(steps)
    for low in (100, 1000, 10_000):
        assert sum(low <= step < 10 * low for step in steps) == per_decade


def test_log_spaced_thins_out():
    steps = sampled(LogSpaced(10), 10_000)
    gaps = [after - before for before, after in pairwise(steps)]
    assert max(gaps[: len(gaps) // 2]) < min(gaps[-10:])


def test_what_every_takes():
    assert resolve_schedule(3) == EverySteps(3)
    assert resolve_schedule(FirstSteps(1)) == FirstSteps(1)
    assert resolve_schedule(lambda step: step == 7)(7)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: resolve_schedule(0), ValueError, "every must be >= 1, got 0"),
        (lambda: resolve_schedule(2.5), TypeError, "got 2.5"),
        (lambda: resolve_schedule(True), TypeError, "got True"),
        (lambda: resolve_schedule("10"), TypeError, "got '10'"),
        (lambda: FirstSteps(0), ValueError, "count must be >= 1, got 0"),
        (lambda: FirstSteps(1, then=0), ValueError, "then must be >= 1, got 0"),
        (lambda: LogSpaced(0), ValueError, "per_decade must be >= 1, got 0"),
    ],
)
def test_bad_schedules(make, error, message):
    with pytest.raises(error, match=message):
        make()
