"""The user's loop, one step at a time, and what is seen around it."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kilolayer.check.refusals import loss_of_step
from kilolayer.check.setup import Setup

WATCHED_STEPS = 3
"""Steps in which gradients are looked at before and after clipping, and parameters before and after the update."""


@dataclass
class TrainingRun:
    """A run of a set-up.

    Attributes:
        losses: of each step taken.
        nonfinite_step: the step whose loss was not finite, where the run ended.
        seconds: how long it took.
        is_cut_short: the time was over before the steps were.

    Examples:
        >>> TrainingRun(losses=[2.3, 0.4]).nonfinite_step is None
        True
    """

    losses: list[float] = field(default_factory=list)
    nonfinite_step: int | None = None
    seconds: float = 0.0
    is_cut_short: bool = False


def take_step(setup: Setup, step: int) -> float:
    """One step of the user's loop; the loss before it."""
    batch = setup.batch_at(step)
    if setup.train_step is not None:
        inputs, targets = setup.parts(batch)
        assert setup.optimizer is not None
        loss = setup.train_step(setup.model, inputs, targets, setup.loss_fn, setup.optimizer)
        return loss_of_step(loss)
    assert setup.optimizer is not None
    setup.optimizer.zero_grad()
    loss = setup.compute(batch)
    if setup.scaler is not None:
        setup.scaler.scale(loss).backward()
        setup.scaler.step(setup.optimizer)
        setup.scaler.update()
    else:
        loss.backward()
        setup.optimizer.step()
    if setup.scheduler is not None:
        setup.scheduler.step()
    return float(loss.detach())


def train(setup: Setup, steps: int, budget_s: float | None = None, on_step: Any = None) -> TrainingRun:
    """Train a set-up as its user would; ends at a loss that is not finite, or when the time is over.

    Nothing is put back: for that, run it within :func:`kilolayer.check.snapshot.kept`.

    Args:
        setup: with an optimizer.
        steps: at most.
        budget_s: seconds; ``None`` for no limit.
        on_step: called with the step and its loss before the next step.

    Raises:
        ValueError: no optimizer, or fewer than one step.

    Examples:
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> setup = Setup(model, (torch.ones(4, 2), torch.zeros(4, 1)), torch.nn.MSELoss(), optimizer=optimizer)
        >>> run = train(setup, 5)
        >>> len(run.losses), run.losses[-1] < run.losses[0]
        (5, True)
    """
    if setup.optimizer is None:
        raise ValueError("a set-up without an optimizer cannot be trained; pass optimizer=")
    if steps < 1:
        raise ValueError(f"steps must be >= 1, got {steps}")
    run = TrainingRun()
    start = time.perf_counter()
    with torch.enable_grad():
        for step in range(steps):
            if budget_s is not None and step > 0 and time.perf_counter() - start > budget_s:
                run.is_cut_short = True
                break
            loss = take_step(setup, step)
            run.losses.append(loss)
            if on_step is not None:
                on_step(step, loss)
            if not math.isfinite(loss):
                run.nonfinite_step = step
                break
    run.seconds = time.perf_counter() - start
    return run


class StepWatch:
    """Looks at the first steps around the optimizer: stale gradients, clipping, updates that rounding swallowed.

    Active as a context manager.
    """

    def __init__(self, setup: Setup):
        assert setup.optimizer is not None
        self._optimizer = setup.optimizer
        self._names = {id(parameter): name for name, parameter in setup.model.named_parameters()}
        self._parameters = [p for group in setup.optimizer.param_groups for p in group["params"] if p.requires_grad]
        self._handles: list[Any] = []
        self._armed: set[int] = set()
        self._suspects: set[int] = set()
        self._norms: dict[int, float] = {}
        self._before: list[Tensor] = []
        self.num_steps = 0
        self.stale: set[str] = set()
        self.unclipped: list[float] = []
        self.clipped: list[float] = []
        self.swallowed: dict[str, float] = {}
        self.nonfinite_update: str | None = None

    def __enter__(self) -> StepWatch:
        for parameter in self._parameters:
            self._handles.append(parameter.register_hook(partial(self._before_accumulation, parameter)))
            self._handles.append(parameter.register_post_accumulate_grad_hook(self._after_accumulation))
        self._handles.append(self._optimizer.register_step_pre_hook(self._before_step))
        self._handles.append(self._optimizer.register_step_post_hook(self._after_step))
        return self

    def __exit__(self, *error: Any) -> None:
        for handle in self._handles:
            handle.remove()
        self._before = []

    def _before_accumulation(self, parameter: Tensor, grad: Tensor) -> None:
        """What is in ``.grad`` when the first gradient since the last step arrives is left over from before.

        It is a fault only where the optimizer steps on the sum: a loss of another network's may add to gradients that
        are dropped before the next backward pass, as a generator's does to its discriminator's.
        """
        key = id(parameter)
        is_left_over = parameter.grad is not None and _is_nonzero(parameter.grad)
        if key in self._armed and is_left_over:
            self._suspects.add(key)
        elif key in self._suspects and not is_left_over:
            self._suspects.discard(key)
        self._armed.discard(key)

    def _after_accumulation(self, parameter: Tensor) -> None:
        if self.num_steps < WATCHED_STEPS and parameter.grad is not None:
            self._norms[id(parameter)] = _l2_norm(parameter.grad)

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        for parameter in self._parameters:
            if id(parameter) in self._suspects and parameter.grad is not None and _is_nonzero(parameter.grad):
                self.stale.add(self._names.get(id(parameter), ""))
        self._suspects.clear()
        if self.num_steps >= WATCHED_STEPS:
            return
        norms = [_l2_norm(p.grad) for p in self._parameters if p.grad is not None]
        self.clipped.append(math.hypot(*norms) if norms else 0.0)
        self.unclipped.append(math.hypot(*self._norms.values()) if self._norms else 0.0)
        self._before = [parameter.detach().clone() for parameter in self._parameters]

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self.num_steps < WATCHED_STEPS:
            self._look_at_updates()
        self.num_steps += 1
        self._armed = {id(parameter) for parameter in self._parameters}
        if self.num_steps == WATCHED_STEPS:
            self._before = []

    def _look_at_updates(self) -> None:
        for parameter, before in zip(self._parameters, self._before, strict=True):
            name = self._names.get(id(parameter), "")
            if parameter.grad is None or not parameter.numel():
                continue
            if self.nonfinite_update is None and _became_nonfinite(before, parameter):
                self.nonfinite_update = name
            if parameter.element_size() >= 4 or parameter.grad.is_sparse:
                continue
            moving = (parameter.grad != 0) & (before != 0)
            if bool(moving.any()):
                same = (parameter.detach() == before)[moving].float().mean()
                self.swallowed[name] = float(same)


def _became_nonfinite(before: Tensor, after: Tensor) -> bool:
    return bool(torch.isfinite(before).all()) and not bool(torch.isfinite(after.detach()).all())


def _entries(grad: Tensor) -> Tensor:
    """What a gradient holds; of a sparse one the entries that are there."""
    return grad.detach().coalesce().values() if grad.is_sparse else grad.detach()


def _is_nonzero(grad: Tensor) -> bool:
    return bool((_entries(grad) != 0).any())


def _l2_norm(grad: Tensor) -> float:
    entries = _entries(grad)
    wide = entries if entries.is_complex() else entries.float()
    return float(torch.linalg.vector_norm(wide)) if entries.numel() else 0.0
