"""Which steps are sampled."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

Schedule = Callable[[int], bool]
"""Takes a step (0-based) and says whether it is sampled."""


@dataclass(frozen=True)
class EverySteps:
    """Step 0 and each ``interval``-th after it.

    Raises:
        ValueError: ``interval`` < 1.

    Examples:
        >>> schedule = EverySteps(10)
        >>> [step for step in range(30) if schedule(step)]
        [0, 10, 20]
    """

    interval: int

    def __post_init__(self) -> None:
        if self.interval < 1:
            raise ValueError(f"every must be >= 1, got {self.interval}")

    def __call__(self, step: int) -> bool:
        return step % self.interval == 0


@dataclass(frozen=True)
class FirstSteps:
    """The first ``count`` steps, then each ``then``-th; ``then=None`` stops there.

    Raises:
        ValueError: ``count`` or ``then`` < 1.

    Examples:
        >>> [step for step in range(25) if FirstSteps(3, then=10)(step)]
        [0, 1, 2, 10, 20]
    """

    count: int
    then: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("count", self.count), ("then", self.then)):
            if value is not None and value < 1:
                raise ValueError(f"FirstSteps: {name} must be >= 1, got {value}")

    def __call__(self, step: int) -> bool:
        return step < self.count or (self.then is not None and step % self.then == 0)


@dataclass(frozen=True)
class LogSpaced:
    """``per_decade`` steps between each power of ten and the next: as much about step 10 as about step 10,000.

    A step s > 0 is sampled where ``floor(per_decade * log10(s))`` rises; step 0 always is.

    Raises:
        ValueError: ``per_decade`` < 1.

    Examples:
        >>> [step for step in range(101) if LogSpaced(3)(step)]
        [0, 1, 3, 5, 10, 22, 47, 100]
    """

    per_decade: int = 10

    def __post_init__(self) -> None:
        if self.per_decade < 1:
            raise ValueError(f"LogSpaced: per_decade must be >= 1, got {self.per_decade}")

    def __call__(self, step: int) -> bool:
        return step < 2 or self._bin(step) != self._bin(step - 1)

    def _bin(self, step: int) -> int:
        return math.floor(self.per_decade * math.log10(step))


def resolve_schedule(every: int | Schedule) -> Schedule:
    """A schedule from what ``every=`` takes.

    Raises:
        ValueError: a number < 1.
        TypeError: neither a whole number nor callable.
    """
    if callable(every):
        return every
    if isinstance(every, bool) or not isinstance(every, int):
        raise TypeError(
            "every must be a whole number of steps, a function of the step or a schedule such as LogSpaced(), "
            f"got {every!r}"
        )
    return EverySteps(every)
