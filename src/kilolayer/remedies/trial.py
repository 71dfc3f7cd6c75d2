"""Trials: a set-up as built, and as built and edited, trained alike."""

from __future__ import annotations

import dataclasses
import math
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import numpy as np
import torch

from kilolayer.diagnosis.examined import Examined
from kilolayer.diagnosis.finding import Finding
from kilolayer.diagnosis.trial import Trial
from kilolayer.remedies.registry import remedies_for
from kilolayer.remedies.remedy import Remedy, SetupLike, Unsuitable, changed

STEPS = 150
MOST_TRIED = 3
"""Remedies tried per finding, in order of fit."""

FEWEST_STEPS = 10
"""Fewer steps show nothing."""

BETTER = 0.05
"""Share by which a loss must be lower to count as lower."""

HALF = 0.5
"""Share of its start at which a loss has fallen whatever else it is held against."""

WORTHWHILE = 0.01
"""The same as a share of where the loss starts: of two runs that both learned everything none is better."""

SEED = 0


class Run(Protocol):
    """What a trainer returns."""

    losses: list[float]


Train = Callable[..., Run]
"""``train(setup, steps, budget_s)``: the plain run of a set-up."""


class SharedObjects(ValueError):
    """A function that returns the same objects at each call: one trial would train what the next is given."""


def prove(
    finding: Finding,
    build: Callable[[], Any],
    *,
    train: Train,
    found: Examined,
    steps: int = STEPS,
    budget_s: float = 30.0,
) -> tuple[Trial, ...]:
    """Try the remedies of a finding: at most three, in order of fit.

    ``build`` is called for each run, so nothing that somebody else holds is touched. Every run starts from the same
    random state, both before the set-up is built and before its first step, gets the batches of the same steps and
    as many of them. Before each trial's run its remedy edits the set-up.

    A remedy **helped** where the edited run

    - is finite to its end,
    - ends below its own start by 5 %, and
    - ends below the untouched run's end by 5 %, by 1 % of its own start and by more than the noise, twice the
      standard error of the difference; or the untouched run is not finite.

    Ends are means over the last tenth of the steps, at least five. Where the edit changes what the loss measures, the
    two runs are compared by the share of its own start that each has left; where the untouched loss falls below 0, so
    that there is no such share, the edited run has to end at half of its own start.

    Args:
        finding: the root finding.
        build: returns a set-up of its own at each call.
        train: trains a set-up in place.
        found: what the examination saw.
        steps: of each run, fewer where the time is short.
        budget_s: seconds for all runs together.

    Returns:
        the remedies tried, :func:`in_order`: the best in front. A remedy that could not be made, or
        failed, is among them with a note; so is one whose change only the user can make.

    Raises:
        SharedObjects: ``build`` returns the same model or optimizer twice.

    Examples:
        >>> import torch, kilolayer as kl
        >>> def build():
        ...     torch.manual_seed(0)
        ...     model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
        ...     inputs = torch.randn(64, 8)
        ...     optimizer = torch.optim.SGD(model.parameters(), lr=300.0)
        ...     return model, inputs, inputs[:, :3].argmax(1), torch.nn.CrossEntropyLoss(), optimizer
        >>> trials = kl.check(build, steps=20).trials  # which calls it
        >>> [trial.name for trial in trials if trial.helped][:1]
        ['lower learning rate']
    """
    remedies = remedies_for(finding)
    if not any(remedy.edit is not None for remedy in remedies):
        return tuple(_untried(remedy, BY_HAND) for remedy in remedies)
    with _eagerly():
        trials = _tried(remedies, build, finding, found, plan=_Plan(train, [], steps, budget_s))
    return in_order(trials)


def _tried(
    remedies: Sequence[Remedy], build: Callable[[], Any], finding: Finding, found: Examined, *, plan: _Plan
) -> list[Trial]:
    start = time.perf_counter()
    untouched, spare = _build_anew(build), _build_anew(build)
    _check_apart(untouched, spare)
    share = plan.budget_s / (1 + min(len(remedies), MOST_TRIED))
    before = _run(plan.train, untouched, plan.steps, share)
    steps = len(before) if np.isfinite(before).all() else plan.steps
    del untouched
    trials: list[Trial] = []
    for remedy in remedies:
        num_run = sum(bool(trial.steps) for trial in trials)
        left = plan.budget_s - (time.perf_counter() - start)
        if num_run == MOST_TRIED or (num_run and left <= 0):
            break
        setup, spare = spare or _build_anew(build), None
        trials.append(_try(remedy, setup, finding, found, plan=_Plan(plan.train, before, steps, max(left, share))))
    return trials


BY_HAND = "only the code itself can be changed so"


@dataclasses.dataclass(frozen=True)
class _Plan:
    """How a trial is run."""

    train: Train
    before: list[float]
    steps: int
    budget_s: float


def _try(remedy: Remedy, setup: SetupLike, finding: Finding, found: Examined, *, plan: _Plan) -> Trial:
    if remedy.edit is None:
        return _untried(remedy, BY_HAND)
    try:
        edited = remedy.edit(setup, finding, found)
    except Unsuitable as reason:
        return _untried(remedy, str(reason))
    except Exception as error:
        return _untried(remedy, f"the edit failed: {_first_line(error)}")
    try:
        after = _run(plan.train, edited.setup, plan.steps, plan.budget_s)
    except Exception as error:
        return _untried(remedy, f"{edited.what}; the edited set-up does not run: {_first_line(error)}")
    return judge_trial(remedy.name, plan.before, after, note=edited.what, changes_loss=remedy.changes_loss)


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def judge_trial(
    name: str, before: Sequence[float], after: Sequence[float], *, note: str = "", changes_loss: bool = False
) -> Trial:
    """What two runs say of an edit; the rule is that of :func:`prove`.

    Examples:
        >>> judge_trial("lower learning rate", [2.3] * 50, [2.3 * 0.95**step for step in range(50)]).helped
        True
        >>> judge_trial("warm-up", [2.3] * 50, [2.29] * 50).helped
        False
    """
    whole = math.isfinite(_end(before))
    if whole:
        # A run that was cut short is held against the same steps of the other.
        num = min(len(before), len(after)) if math.isfinite(_end(after)) else len(after)
        before, after = before[:num], after[:num]
    helped = len(after) >= FEWEST_STEPS and _is_lower(before, after, changes_loss=changes_loss)
    if len(after) < FEWEST_STEPS and math.isfinite(_end(after)):
        note = f"{note}; {len(after)} steps are too few to tell"
    return Trial(name, _end(before), _end(after), helped, len(after), tuple(before), tuple(after), note)


def _is_lower(before: Sequence[float], after: Sequence[float], *, changes_loss: bool) -> bool:
    end, start = _end(after), after[0]
    if not math.isfinite(end) or not end < start - BETTER * abs(start):
        return False
    other = _end(before)
    if not math.isfinite(other):
        return True
    if changes_loss and other < 0:
        # What it measured had no floor, such as a likelihood of what is no probability: there is no share to compare.
        return end < HALF * start
    # In shares of each run's own start, or of one that both have.
    unit = abs(start) or 1.0
    unit_before = (abs(before[0]) or 1.0) if changes_loss else unit
    noise = 2 * math.hypot(_standard_error(before) / unit_before, _standard_error(after) / unit)
    gain = other / unit_before - end / unit
    return gain > max(BETTER * abs(other / unit_before), WORTHWHILE, noise)


def _tail(losses: Sequence[float]) -> np.ndarray:
    return np.array(losses[-max(5, len(losses) // 10) :], float)


def _end(losses: Sequence[float]) -> float:
    """Mean of the last tenth, at least five steps; NaN where a loss is not finite."""
    tail = _tail(losses)
    return float(tail.mean()) if len(losses) and np.isfinite(losses).all() else math.nan


def _standard_error(losses: Sequence[float]) -> float:
    tail = _tail(losses)
    return float(tail.std(ddof=1) / math.sqrt(len(tail))) if len(tail) > 1 else 0.0


def in_order(trials: Sequence[Trial]) -> tuple[Trial, ...]:
    """Those that helped, the lowest loss in front; those that did not; those that were not tried.

    Of remedies that end within 1 % of the start of the lowest loss, the order of fit decides: all of them mended it.
    """
    least = min((trial.loss_after for trial in trials if trial.helped), default=math.nan)

    def rank(trial: Trial) -> tuple[int, float]:
        if not trial.helped:
            return (1 if trial.steps else 2), 0.0
        start = max(abs(trial.losses_after[0]), abs(trial.losses_before[0]))
        is_least = not trial.loss_after > least + WORTHWHILE * (start if math.isfinite(start) else 0.0)
        return 0, -math.inf if is_least else trial.loss_after

    return tuple(sorted(trials, key=rank))


def _untried(remedy: Remedy, why: str) -> Trial:
    return Trial(remedy.name, math.nan, math.nan, False, note=f"not tried: {why}")


# ---------------------------------------------------------------------- runs
def _build_anew(build: Callable[[], Any]) -> Any:
    """Another set-up; a compiled model as what it was compiled from, so that its operations can be edited."""
    _seed()
    setup = build()
    plain = getattr(setup.model, "_orig_mod", None)
    return setup if plain is None else changed(setup, model=plain)


def _run(train: Train, setup: SetupLike, steps: int, budget_s: float) -> list[float]:
    _seed()
    return list(train(setup, steps, budget_s).losses)


@contextmanager
def _eagerly() -> Iterator[None]:
    """Compiled parts of models run uncompiled."""
    with ExitStack() as stack:
        if "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield


def _seed() -> None:
    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)


def _check_apart(one: SetupLike, other: SetupLike) -> None:
    mine = {id(parameter) for parameter in one.model.parameters()}
    is_shared = any(id(parameter) in mine for parameter in other.model.parameters())
    if is_shared or (one.optimizer is not None and one.optimizer is other.optimizer):
        raise SharedObjects(
            "the function returns the same model or optimizer at each call, so a trial would train the caller's; "
            "build them inside of the function"
        )
