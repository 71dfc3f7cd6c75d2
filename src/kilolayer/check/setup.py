"""A set-up: a model, the data it is trained on, the loss and the optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kilolayer.check.refusals import (
    check_batch,
    check_batches,
    check_inputs,
    check_loop,
    check_loss,
    check_loss_of_model,
    check_model,
    describe,
)

LossFunction = Callable[[Any, Any], Tensor]
TrainStep = Callable[[nn.Module, Any, Any, Any, torch.optim.Optimizer], Any]


@dataclass
class Setup:
    """What is examined; the objects themselves, never copies.

    The loss is, in this order: ``compute_loss(model, batch)``; ``loss_fn(model(inputs), targets)`` with
    ``(inputs, targets) = batch``; what ``model(inputs)`` returns as a scalar or as its ``.loss``. ``inputs`` may be a
    tensor, a tuple of positional inputs or a dictionary of keyword inputs.

    Args:
        model: the model.
        batch: ``(inputs, targets)``, or anything ``compute_loss`` takes.
        loss_fn: ``loss_fn(outputs, targets)`` -> scalar.
        compute_loss: ``compute_loss(model, batch)`` -> scalar, for models that do not fit the line above.
        optimizer: ``None``: only what can be told without a step is examined.
        batches: ``batches(step)`` -> batch, for fresh data each step; ``None``: ``batch`` each time.
        scheduler: stepped after each optimizer step.
        scaler: the ``GradScaler`` of mixed precision.
        train_step: the user's own loop body, ``train_step(model, inputs, targets, loss_fn, optimizer)`` -> loss. It
            does everything a step does, the scheduler's step too.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: a model without parameters or values, an empty batch, or a loop that needs ``train_step``.

    Examples:
        >>> model = nn.Linear(3, 1)
        >>> setup = Setup(model, (torch.ones(4, 3), torch.zeros(4, 1)), nn.MSELoss())
        >>> setup.compute(setup.batch).shape
        torch.Size([])
    """

    model: nn.Module
    batch: Any
    loss_fn: LossFunction | None = None
    compute_loss: Callable[[nn.Module, Any], Tensor] | None = None
    optimizer: torch.optim.Optimizer | None = None
    batches: Callable[[int], Any] | None = None
    scheduler: Any = None
    scaler: Any = None
    train_step: TrainStep | None = None

    def __post_init__(self) -> None:
        check_model(self.model)
        check_batches(self.batches)
        for name in ("loss_fn", "compute_loss", "train_step"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise TypeError(f"{name} must be a function, got {describe(value)}")
        if self.train_step is not None and self.optimizer is None:
            raise ValueError("train_step needs an optimizer; pass optimizer=")
        check_loop(self.optimizer, self.scheduler, self.scaler, has_train_step=self.train_step is not None)
        self._check_batch(self.batch)

    def _check_batch(self, batch: Any) -> None:
        if self.compute_loss is None:
            if self.loss_fn is not None and not _is_pair(batch):
                raise TypeError(
                    f"batch must be (inputs, targets) where loss_fn is given, got {describe(batch)}; "
                    "for a batch of another form pass compute_loss(model, batch)"
                )
            check_inputs(self.parts(batch)[0])
        check_batch(batch)

    def parts(self, batch: Any) -> tuple[Any, Any]:
        """Inputs and targets of a batch; ``None`` for targets where there are none."""
        return (batch[0], batch[1]) if _is_pair(batch) else (batch, None)

    def batch_at(self, step: int) -> Any:
        """The batch of one step.

        Raises:
            TypeError, ValueError: there is none, or none of the set-up's form.
        """
        if self.batches is None:
            return self.batch
        try:
            batch = self.batches(step)
        except StopIteration as error:
            raise ValueError(
                f"the data end at step {step}: batches({step}) has no batch left; begin again, or ask for fewer steps"
            ) from error
        try:
            self._check_batch(batch)
        except (TypeError, ValueError) as error:
            raise type(error)(f"at step {step}: {error}") from None
        return batch

    def compute(self, batch: Any) -> Tensor:
        """The loss of one batch, with its graph.

        Raises:
            TypeError, ValueError: it is no scalar tensor.
        """
        if self.compute_loss is not None:
            loss = self.compute_loss(self.model, batch)
        else:
            inputs, targets = self.parts(batch)
            outputs = call_model(self.model, inputs)
            loss = check_loss_of_model(outputs) if self.loss_fn is None else self.loss_fn(outputs, targets)
        return check_loss(loss)


def call_model(model: nn.Module, inputs: Any) -> Any:
    """Call a model with a tensor, a tuple of positional inputs or a dictionary of keyword inputs."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)


def _is_pair(batch: Any) -> bool:
    return isinstance(batch, (tuple, list)) and len(batch) == 2
