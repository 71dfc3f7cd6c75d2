"""For test suites: fail where a set-up does not train."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kilolayer.check import Setup, check
from kilolayer.diagnosis import Diagnosis
from kilolayer.diagnosis.finding import SEVERITIES


def assert_trainable(
    source: Setup | Callable[[], Any], *, budget_s: float = 60.0, steps: int | None = None, fail_on: str = "warning"
) -> Diagnosis:
    """Fail with the root finding where a set-up does not train; return the verdict otherwise.

    Args:
        source: a set-up, or a function that returns one.
        budget_s: seconds for everything.
        steps: steps of the run at most.
        fail_on: ``"error"`` or ``"warning"``, the least severity that fails.

    Raises:
        AssertionError: a finding at or above ``fail_on``; a run that fails while no rule says why is a warning.
        ValueError: another ``fail_on``, or a set-up that cannot be examined.

    Example:
        >>> import torch
        >>> def build():
        ...     torch.manual_seed(0)
        ...     model = torch.nn.Linear(4, 3)
        ...     inputs = torch.randn(32, 4)
        ...     optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        ...     return model, inputs, inputs[:, :3].argmax(1), torch.nn.CrossEntropyLoss(), optimizer
        >>> assert_trainable(build).root is None
        True
    """
    if fail_on not in SEVERITIES[1:]:
        raise ValueError(f"fail_on {fail_on!r} is unknown; use one of {', '.join(SEVERITIES[1:])}")
    diagnosis = check(source, budget_s, trial=False, steps=steps)
    if not diagnosis.is_at_least(fail_on):
        return diagnosis
    root = diagnosis.root
    if root is None:
        raise AssertionError(f"warning: {diagnosis.unexplained}")
    place = f" at {root.first_site}" if root.first_site else ""
    raise AssertionError(f"{root.severity} {root.code} {root.cause}{place}: {root.message} {root.remedy}")
