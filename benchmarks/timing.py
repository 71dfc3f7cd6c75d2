"""Timing things in turn in one process: the machine's speed drifts, ratios taken side by side do not."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

Work = Callable[[], object]


def time_in_turn(works: Mapping[str, Work], *, rounds: int, warmup: int = 2) -> dict[str, list[float]]:
    """Seconds of each work in each round, one after the other within a round.

    The order turns around every round, so that none always runs behind the same other.
    """
    for _ in range(warmup):
        for work in works.values():
            work()
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds):
        order = list(works.items())
        for name, work in order if number % 2 == 0 else reversed(order):
            started = time.perf_counter()
            work()
            seconds[name].append(time.perf_counter() - started)
    return seconds


def ratio(seconds: Mapping[str, list[float]], name: str, beside: str) -> tuple[float, float, float]:
    """Median, lower and upper quartile over rounds of ``name``'s time over ``beside``'s."""
    ratios = sorted(a / b for a, b in zip(seconds[name], seconds[beside], strict=True))
    quartiles = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [ratios[0]] * 3
    return statistics.median(ratios), quartiles[0], quartiles[2]
