"""What no set-up can be made of, refused with what was given and what to do instead."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from kilolayer.structure.schemas import tensors_in


def check_model(model: Any) -> None:
    """Refuse what has no values to train.

    Raises:
        TypeError: no module.
        ValueError: no parameters, or one that has no shape, no values, or cannot be trained.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    parameters = dict(model.named_parameters())
    if not parameters:
        raise ValueError(f"{type(model).__name__} has no parameters, so there is nothing to train")
    for name, parameter in parameters.items():
        if is_lazy(parameter):
            raise ValueError(f"parameter {name} has no shape yet; call the model once before building the optimizer")
        if parameter.is_meta:
            raise ValueError(
                f"parameter {name} is on the meta device and holds no values; call model.to_empty(device='cpu') and "
                "initialize it"
            )
        if parameter.is_inference():
            raise ValueError(
                f"parameter {name} was made in inference mode and cannot be trained; build the model outside of "
                "torch.inference_mode()"
            )


def check_batch(batch: Any) -> None:
    """Refuse a batch without samples or without values.

    Raises:
        ValueError: one of its tensors is empty, or on the meta device.
    """
    for tensor in tensors_in(batch):
        if tensor.numel() == 0:
            raise ValueError(f"the batch is empty: it holds a tensor of shape {tuple(tensor.shape)}")
        if tensor.is_meta:
            raise ValueError("the batch holds a tensor on the meta device, which has no values")


def check_inputs(inputs: Any) -> None:
    """Refuse what a model is not called with: nothing, or batches one after the other.

    Raises:
        TypeError: ``None``, an iterator or a loader.
    """
    if inputs is None:
        raise TypeError("the batch's inputs are None; pass (inputs, targets), or compute_loss(model, batch)")
    if isinstance(inputs, (Iterator, torch.utils.data.DataLoader)):
        raise TypeError(f"the batch's inputs are {describe(inputs)}; pass one batch of it: next(iter(...))")


def check_batches(batches: Any) -> None:
    """Refuse a loader where a function of the step is wanted.

    Raises:
        TypeError: no function.
    """
    if batches is not None and not callable(batches):
        raise TypeError(
            f"batches must be a function, got {describe(batches)}; of a loader it is made by "
            "endless = itertools.cycle(loader) and batches=lambda step: next(endless)"
        )


def check_loop(optimizer: Any, scheduler: Any, scaler: Any, *, has_train_step: bool) -> None:
    """Refuse parts of a training loop that cannot be stepped as the loop steps them.

    Raises:
        TypeError: a part of the wrong kind.
        ValueError: a part whose step takes an argument, without the user's own loop body.
    """
    if optimizer is not None and not hasattr(optimizer, "param_groups"):
        raise TypeError(f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}")
    if scheduler is not None and not callable(getattr(scheduler, "step", None)):
        raise TypeError(f"scheduler must have a method step, got {describe(scheduler)}")
    if scaler is not None and not all(callable(getattr(scaler, name, None)) for name in ("scale", "step", "update")):
        raise TypeError(f"scaler must be a torch.amp.GradScaler, got {describe(scaler)}")
    if has_train_step:
        return
    for part in (optimizer, scheduler):
        if part is not None and (needed := _needed_argument(type(part))) is not None:
            raise ValueError(
                f"{type(part).__name__}.step needs an argument ({needed}); pass train_step=, your own loop body"
            )


def check_loss(loss: Any) -> Tensor:
    """Refuse what is not one number of a tensor.

    Raises:
        TypeError: no tensor.
        ValueError: more than one entry, or an integer.
    """
    if not isinstance(loss, Tensor):
        raise TypeError(f"the loss must be a scalar tensor, got {describe(loss)}; pass loss_fn or compute_loss")
    if loss.numel() != 1:
        raise ValueError(
            f"the loss must be a scalar, got a tensor of shape {tuple(loss.shape)}; take its mean (reduction='mean')"
        )
    if not loss.is_floating_point():
        raise ValueError(f"the loss must be a floating point number, got {loss.dtype}")
    return loss.reshape(())


def check_loss_of_model(outputs: Any) -> Any:
    """The loss among a model's outputs, where no loss function was given.

    Raises:
        ValueError: the outputs are no loss.
    """
    loss = getattr(outputs, "loss", outputs)
    if isinstance(loss, Tensor) and loss.numel() != 1:
        raise ValueError(
            f"the model returns no loss but a tensor of shape {tuple(loss.shape)}; pass loss_fn or compute_loss"
        )
    return loss


def loss_of_step(loss: Any) -> float:
    """What the user's own loop body returned, as a number.

    Raises:
        TypeError: no number.
        ValueError: a tensor that is no scalar.
    """
    if isinstance(loss, Tensor):
        return float(check_loss(loss).detach())
    try:
        return float(loss)
    except (TypeError, ValueError):
        raise TypeError(f"train_step must return the loss, got {describe(loss)}") from None


def describe(value: Any) -> str:
    """Kind of a value, in words: ``an int``, ``a tuple of 3``."""
    if value is None:
        return "None"
    name = type(value).__name__
    article = "an" if name[0].lower() in "aeiou" else "a"
    return f"{article} {name} of {len(value)}" if isinstance(value, (tuple, list)) else f"{article} {name}"


def _needed_argument(part: type) -> str | None:
    """The first parameter of a class's ``step`` that has no default."""
    try:
        # Not an object's own: schedulers put a wrapper there that is called without self and yet names it.
        _, *parameters = inspect.signature(part.step).parameters.values()  # type: ignore[attr-defined]
    except (AttributeError, TypeError, ValueError):  # nothing is known of it
        return None
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return next((one.name for one in parameters if one.default is one.empty and one.kind in kinds), None)
