"""The whole way: examine a set-up, judge what was found, look again where that does not decide, prove a remedy."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from kilolayer.check.examine import (
    DEFAULT_STEPS,
    RUN_SHARE,
    Examination,
    can_train,
    look_at_other_rates,
    look_at_run,
    look_at_step_0,
)
from kilolayer.check.setup import Setup
from kilolayer.check.source import as_builder, located
from kilolayer.check.trials import with_trials
from kilolayer.diagnosis import Diagnosis, diagnose
from kilolayer.diagnosis.examined import Examined

CERTAIN = 0.9
"""Confidence of a root finding from which on further stages are left out."""

LEAST_FOR_TRIALS = 0.25
"""Share of the budget that trials get even where the examination took longer than it should."""

OTHER_STEPS = 40
"""Steps at each other learning rate: enough to see a loss leave its start."""

OTHER_SHARE = 0.25
"""Of the budget that the look at other learning rates may take."""

TARGET_UPDATE = 3e-3
"""Update ratio at step 0 that a search for a larger learning rate aims at."""


def check(
    source: Setup | Callable[[], Any], budget_s: float = 60.0, trial: bool = True, *, steps: int | None = None
) -> Diagnosis:
    """Find out why a set-up does not train.

    Examines the set-up in stages and judges what was measured, see :mod:`kilolayer.check`. The objects are left as
    they were, bit by bit, and so is the random state.

    Args:
        source: a set-up, or a function that returns one (or the tuple ``model, inputs, targets, loss_fn,
            optimizer``) afresh at each call; trials need the function.
        budget_s: seconds for everything.
        trial: whether remedies are tried, where there is a function.
        steps: steps of the run at most.

    Raises:
        TypeError: neither a set-up nor a function.
        ValueError: a set-up that cannot be examined, with the user's file and line where they are known; a budget
            or a number of steps that is not positive.

    Examples:
        >>> def build():
        ...     torch.manual_seed(0)
        ...     model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        ...     inputs = torch.randn(32, 4)
        ...     optimizer = torch.optim.Adam([model[0].weight], lr=0.01)
        ...     return model, inputs, inputs[:, :3].argmax(1), torch.nn.CrossEntropyLoss(), optimizer
        >>> check(build, trial=False).root.cause
        'parameters-not-optimized'
    """
    _check_arguments(budget_s, steps)
    start = time.perf_counter()
    with _random_state():
        setup, build = as_builder(source)
        origin = source if callable(source) and not isinstance(source, Setup) else None
        with located(origin):
            diagnosis = judge_setup(setup, budget_s=budget_s, steps=steps)
            if trial:
                left = max(budget_s - (time.perf_counter() - start), LEAST_FOR_TRIALS * budget_s)
                diagnosis = with_trials(diagnosis, build, steps=steps, budget_s=left)
    return dataclasses.replace(diagnosis, seconds=time.perf_counter() - start)


def judge_setup(setup: Setup, *, budget_s: float, steps: int | None) -> Diagnosis:
    """The stages, the cheapest first, until the verdict is certain."""
    examination = Examination(setup)
    look_at_step_0(examination)
    if setup.optimizer is None or not can_train(examination):
        return _judge(examination)
    look_at_run(examination, steps=steps or DEFAULT_STEPS, budget_s=RUN_SHARE * budget_s)
    diagnosis = _judge(examination)
    factors = factors_to_try(diagnosis)
    if factors:
        num_steps = min(OTHER_STEPS, steps or DEFAULT_STEPS)
        look_at_other_rates(examination, factors, steps=num_steps, budget_s=OTHER_SHARE * budget_s)
        diagnosis = _judge(examination)
    return diagnosis


def factors_to_try(diagnosis: Diagnosis) -> tuple[float, ...]:
    """Other learning rates worth a look: none where the run learns or the cause is certain without them."""
    assert diagnosis.recording is not None
    found = Examined(diagnosis.recording)
    root = diagnosis.root
    is_about_rate = root is not None and root.code.startswith("UPD30")
    if not found.fails or (root is not None and not is_about_rate and root.confidence >= CERTAIN):
        return ()
    largest = max(found.update_ratios.values(), default=0.0)
    if not largest:
        return ()
    if found.outcome in ("non-finite", "diverged") or (found.update_ratio or 0) > 0.02:
        return (0.1, 0.01)
    factor = 10.0 ** round(np.log10(TARGET_UPDATE / largest)) if largest < TARGET_UPDATE else 10.0
    return (0.1, 10.0) if factor <= 10 else (factor, 10 * factor)


def _judge(examination: Examination) -> Diagnosis:
    recording = examination.recording()
    return dataclasses.replace(diagnose(recording), recording=recording)


def _check_arguments(budget_s: float, steps: int | None) -> None:
    if not budget_s > 0:
        raise ValueError(f"budget_s must be positive, got {budget_s}")
    if steps is not None and (not isinstance(steps, int) or steps < 1):
        raise ValueError(f"steps must be a whole number >= 1, got {steps!r}")


@contextmanager
def _random_state() -> Iterator[None]:
    """The user's function seeds what it likes; the caller's random state is not its business."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
