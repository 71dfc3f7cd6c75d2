"""For test suites: fail where a set-up does not train.

With ``pytest_plugins = ["kilolayer.testing"]`` in its ``conftest.py`` a suite has :func:`assert_trainable` as a fixture
too, which writes outcome and cause among the test's properties.
"""

from __future__ import annotations

import contextlib
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

    Examples:
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
    __tracebackhide__ = True
    diagnosis = _check(source, budget_s=budget_s, steps=steps, fail_on=fail_on)
    _fail_on(diagnosis, fail_on)
    return diagnosis


def _check(source: Any, *, budget_s: float = 60.0, steps: int | None = None, fail_on: str = "warning") -> Diagnosis:
    if fail_on not in SEVERITIES[1:]:
        raise ValueError(f"fail_on {fail_on!r} is unknown; use one of {', '.join(SEVERITIES[1:])}")
    return check(source, budget_s, trial=False, steps=steps)


def _fail_on(diagnosis: Diagnosis, fail_on: str) -> None:
    __tracebackhide__ = True
    if not diagnosis.is_at_least(fail_on):
        return
    root = diagnosis.root
    if root is None:
        raise AssertionError(f"warning: {diagnosis.unexplained}")
    place = f" at {root.first_site}" if root.first_site else ""
    raise AssertionError(f"{root.severity} {root.code} {root.cause}{place}: {root.message} {root.remedy}")


with contextlib.suppress(ImportError):  # a suite of another kind has no pytest
    import pytest

    @pytest.fixture(name="assert_trainable")
    def _assert_trainable(request: pytest.FixtureRequest) -> Callable[..., Diagnosis]:
        """:func:`assert_trainable`, with the verdict among the properties of the test (JUnit XML)."""

        def checked(source: Setup | Callable[[], Any], *, fail_on: str = "warning", **options: Any) -> Diagnosis:
            __tracebackhide__ = True
            diagnosis = _check(source, fail_on=fail_on, **options)
            cause = None if diagnosis.root is None else diagnosis.root.cause
            # Not by record_property, which warns about files that the suite may not even write.
            request.node.user_properties += [("kilolayer_outcome", diagnosis.outcome), ("kilolayer_cause", cause)]
            _fail_on(diagnosis, fail_on)
            return diagnosis

        return checked
