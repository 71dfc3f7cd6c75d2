"""A set-up: a model, the data it is trained on, the loss and the optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kilolayer.structure.schemas import tensors_in

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
        ValueError: a model without parameters, an empty batch, or tensors on a device that is not there.

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
        if not isinstance(self.model, nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, got {type(self.model).__name__}")
        for name in ("loss_fn", "compute_loss", "batches", "train_step"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise TypeError(f"{name} must be a function, got {type(value).__name__}")
        if self.optimizer is not None and not hasattr(self.optimizer, "param_groups"):
            raise TypeError(f"optimizer must be a torch.optim.Optimizer, got {type(self.optimizer).__name__}")
        if self.train_step is not None and self.optimizer is None:
            raise ValueError("train_step needs an optimizer; pass optimizer=")
        if not any(True for _ in self.model.parameters()):
            raise ValueError(f"{type(self.model).__name__} has no parameters, so there is nothing to train")
        if self.loss_fn is not None and self.compute_loss is None and not _is_pair(self.batch):
            raise TypeError(
                f"batch must be (inputs, targets) where loss_fn is given, got {_describe(self.batch)}; "
                "for a batch of another form pass compute_loss(model, batch)"
            )
        check_batch(self.batch)

    def parts(self, batch: Any) -> tuple[Any, Any]:
        """Inputs and targets of a batch; ``None`` for targets where there are none."""
        return (batch[0], batch[1]) if _is_pair(batch) else (batch, None)

    def batch_at(self, step: int) -> Any:
        """The batch of one step."""
        if self.batches is None:
            return self.batch
        batch = self.batches(step)
        check_batch(batch)
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
            loss = outputs if self.loss_fn is None else self.loss_fn(outputs, targets)
            loss = getattr(loss, "loss", loss) if self.loss_fn is None else loss
        return check_loss(loss)


def call_model(model: nn.Module, inputs: Any) -> Any:
    """Call a model with a tensor, a tuple of positional inputs or a dictionary of keyword inputs."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)


def check_loss(loss: Any) -> Tensor:
    """Refuse what is not one number of a tensor.

    Raises:
        TypeError: no tensor.
        ValueError: more than one entry, or an integer.
    """
    if not isinstance(loss, Tensor):
        raise TypeError(f"the loss must be a scalar tensor, got {_describe(loss)}; pass loss_fn or compute_loss")
    if loss.numel() != 1:
        raise ValueError(
            f"the loss must be a scalar, got a tensor of shape {tuple(loss.shape)}; take its mean (reduction='mean')"
        )
    if not loss.is_floating_point():
        raise ValueError(f"the loss must be a floating point number, got {loss.dtype}")
    return loss.reshape(())


def check_batch(batch: Any) -> None:
    """Refuse a batch without samples.

    Raises:
        ValueError: one of its tensors is empty.
    """
    for tensor in tensors_in(batch):
        if tensor.numel() == 0:
            raise ValueError(f"the batch is empty: it holds a tensor of shape {tuple(tensor.shape)}")


def _is_pair(batch: Any) -> bool:
    return isinstance(batch, (tuple, list)) and len(batch) == 2


def _describe(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"
