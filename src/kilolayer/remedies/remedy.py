"""A remedy: an edit of a set-up that answers certain causes, and the change of code that does the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from kilolayer.diagnosis.examined import Examined
from kilolayer.diagnosis.finding import Finding


class SetupLike(Protocol):
    """What an edit knows of a set-up: the fields of ``kilolayer.Setup``, a dataclass."""

    model: nn.Module
    batch: Any
    loss_fn: Any
    compute_loss: Any
    optimizer: Any
    batches: Any
    scheduler: Any
    scaler: Any
    train_step: Any

    def parts(self, batch: Any) -> tuple[Any, Any]:
        """Inputs and targets of a batch."""

    def compute(self, batch: Any) -> Tensor:
        """The loss of one batch."""


class Unsuitable(ValueError):
    """An edit that this set-up has no place for; the message is a sentence that says why.

    Examples:
        >>> raise Unsuitable("there is no optimizer whose rate could be lowered")
        Traceback (most recent call last):
        kilolayer.remedies.remedy.Unsuitable: there is no optimizer whose rate could be lowered
    """


@dataclass(frozen=True)
class Edited:
    """A set-up behind an edit.

    Attributes:
        setup: the edited set-up; the model and the optimizer are those that the edit was given.
        what: what was done, in a few words, with the numbers.
    """

    setup: SetupLike
    what: str


Edit = Callable[[SetupLike, Finding, Examined], Edited]
Patch = Callable[[Finding, Examined], str]


@dataclass(frozen=True)
class Remedy:
    """An answer to certain causes.

    Attributes:
        name: as reports show it.
        causes: the words of ``Finding.cause`` that it answers.
        edit: changes a set-up nobody else holds, in place where that is possible, and returns it with what was done;
            raises :class:`Unsuitable` where there is nothing to change. ``None``: nothing outside of the user's code
            can do it.
        patch: the change of code a user would make, as a snippet.
        changes_loss: whether the loss measures something else behind the edit; then the two runs are compared by the
            share of its start that each has left.
    """

    name: str
    causes: tuple[str, ...]
    edit: Edit | None
    patch: Patch
    changes_loss: bool = False


AnySetup = TypeVar("AnySetup", bound=SetupLike)


def changed(setup: AnySetup, **fields: Any) -> AnySetup:
    """The set-up with other fields: the same objects but for those."""
    new: AnySetup = dataclasses.replace(setup, **fields)  # type: ignore[type-var]
    return new


def optimizer_of(setup: SetupLike) -> torch.optim.Optimizer:
    """The optimizer.

    Raises:
        Unsuitable: there is none.
    """
    if setup.optimizer is None:
        raise Unsuitable("the set-up has no optimizer")
    optimizer: torch.optim.Optimizer = setup.optimizer
    return optimizer


def run_quietly(setup: SetupLike) -> None:
    """One pass for what hooks see of it: without gradients, in evaluation, which leaves running statistics alone."""
    modes = [(module, module.training) for module in setup.model.modules()]
    fast_path = torch.backends.mha.get_fastpath_enabled()
    try:
        for module, _ in modes:
            module.training = False
        torch.backends.mha.set_fastpath_enabled(False)  # it goes past the modules inside
        with torch.no_grad():
            setup.compute(setup.batch)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        for module, mode in modes:
            module.training = mode


def module_at(model: nn.Module, path: str | None) -> nn.Module | None:
    """The module of a path, or of a parameter's name; ``None`` where there is none."""
    while path:
        try:
            return model.get_submodule(path)
        except AttributeError:
            path = path.rpartition(".")[0]
    return None if path is None else model


def parameter_at(model: nn.Module, name: str) -> nn.Parameter | None:
    """The parameter of a name, with or without what compiling adds to it; ``None`` where there is none."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    return parameters.get(name, parameters.get(name.replace("_orig_mod.", "")))


def as_code(name: str) -> str:
    """A module's or parameter's name as code: numbers become indices.

    Examples:
        >>> as_code("blocks.0.linear.weight"), as_code("2")
        ('model.blocks[0].linear.weight', 'model[2]')
    """
    return "model" + "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in name.split(".") if part)
