"""From what was seen of a training script to a set-up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from kilolayer.check.setup import Setup, TrainStep, call_model
from kilolayer.check.source import SetupError
from kilolayer.check.tape import Entry, Iteration, constants_of, replay, swapped
from kilolayer.structure.schemas import tensors_in


@dataclass(frozen=True)
class Clip:
    """A clipping of gradients: the function and its arguments behind the parameters."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass
class Recorded:
    """What was seen of a script.

    Attributes:
        optimizer: the one that it steps.
        iterations: one per step.
        clips: by name.
        scheduler: one that is stepped between the first two steps of the optimizer.
        keeps_gradients: gradients of a step are still there when those of the next arrive.
        names: ``id`` of a module -> what the script calls it.
    """

    optimizer: Any = None
    iterations: list[Iteration] = field(default_factory=list)
    clips: dict[str, Clip] = field(default_factory=dict)
    scheduler: Any = None
    keeps_gradients: bool = False
    names: dict[int, str] = field(default_factory=dict)
    _handles: list[Any] = field(default_factory=list)

    @property
    def num_bytes(self) -> int:
        """What the kept batches take."""
        return sum(one.num_bytes for one in self.iterations)

    def arm(self, parameters: Sequence[Tensor]) -> None:
        """Look, behind a step, whether its gradients are left when the next one comes."""
        self.release()
        for parameter in parameters:
            if parameter.requires_grad and parameter.grad is not None and bool((parameter.grad != 0).any()):

                def look(grad: Tensor, parameter: Tensor = parameter) -> None:
                    if parameter.grad is not None and bool((parameter.grad != 0).any()):
                        self.keeps_gradients = True
                    self.release()

                self._handles.append(parameter.register_hook(look))

    def release(self) -> None:
        """Look no more."""
        for handle in self._handles:
            handle.remove()
        self._handles = []


def setup_of(found: Recorded) -> Setup:
    """The set-up of a script.

    Raises:
        SetupError: the script went back from no loss.
    """
    if not found.iterations:
        raise SetupError("the script steps an optimizer without loss.backward(), so there is no loss to look at")
    setup = _plain(found) or _general(found)
    if found.keeps_gradients or found.clips:
        setup.train_step = _loop(setup, found)
    setup.scheduler = found.scheduler
    return setup


# ---------------------------------------------------------------------- one model, called once
def _plain(found: Recorded) -> Setup | None:
    """Inputs, targets and a loss function, where each step calls one model once and goes back from one loss."""
    first = found.iterations[0]
    if len(first.calls) != 1 or len(first.losses) != 1 or first.entries[0] is not first.calls[0]:
        return None
    call = first.calls[0]
    behind = first.entries[1:]
    if any(one.requires_grad for one in constants_of(behind) if not _is_made_by(call, one)):
        return None
    if not all(_is_alike(first, one) for one in found.iterations):
        return None
    batches = [_batch_of(one) for one in found.iterations]
    loss_fn = None
    if behind:
        loss_fn = _loss_function(call, behind, first.losses[0], _targets_in(first))
    elif not any(one is first.losses[0] for one in tensors_in(getattr(call.result, "loss", call.result))):
        return None
    pairs = [(inputs, _single(targets)) for inputs, targets in batches]
    return _with_batches(Setup(call.func, pairs[0], loss_fn, optimizer=found.optimizer), pairs, found)


def _is_alike(one: Iteration, other: Iteration) -> bool:
    return [entry.func for entry in one.entries] == [entry.func for entry in other.entries] and len(
        _targets_in(one)
    ) == len(_targets_in(other))


def _is_made_by(call: Entry, tensor: Tensor) -> bool:
    return any(tensor is one for one in tensors_in(call.result))


def _targets_in(one: Iteration) -> list[Tensor]:
    """What the loss is given besides outputs and has a row per sample."""
    call, *behind = one.entries
    given = [tensor for tensor in call.given() if tensor.dim()]
    size = len(given[0]) if given else 0
    outside = [tensor for tensor in constants_of(behind) if not _is_made_by(call, tensor)]
    return [tensor for tensor in outside if tensor.dim() and len(tensor) == size]


def _batch_of(one: Iteration) -> tuple[Any, list[Tensor]]:
    call = one.entries[0]
    args, kwargs = swapped(call.args, one.constants), swapped(dict(call.kwargs), one.constants)
    targets = [one.constants[id(tensor)] for tensor in _targets_in(one)]
    if kwargs:
        return _as_keywords(call.func, args, kwargs), targets
    return (args[0] if len(args) == 1 else args), targets


def _as_keywords(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    import inspect

    if not args:
        return kwargs
    bound = inspect.signature(module.forward).bind(*args, **kwargs)
    return dict(bound.arguments)


def _single(targets: list[Tensor]) -> Any:
    if not targets:
        return None
    return targets[0] if len(targets) == 1 else tuple(targets)


def _loss_function(
    call: Entry, behind: Sequence[Entry], loss: Tensor, targets: Sequence[Tensor]
) -> Callable[[Any, Any], Tensor]:
    made, target_ids = [id(one) for one in tensors_in(call.result)], [id(one) for one in targets]

    def loss_fn(outputs: Any, targets: Any) -> Tensor:
        known = dict(zip(made, tensors_in(outputs), strict=True))
        known.update(zip(target_ids, tensors_in(targets), strict=True))
        return replay(behind, known)[id(loss)]

    return loss_fn


# ---------------------------------------------------------------------- anything else
def _general(found: Recorded) -> Setup:
    """The tensors of a step as its batch, and a loss that does what the script did."""
    iterations = dict(enumerate(found.iterations))
    batches = [{"step": index, "tensors": list(one.constants.values())} for index, one in iterations.items()]

    def compute_loss(model: nn.Module, batch: Any) -> Any:
        one = iterations[batch["step"]]
        return one.loss(dict(zip(one.constants, batch["tensors"], strict=True)))

    setup = Setup(_model_of(found), batches[0], compute_loss=compute_loss, optimizer=found.optimizer)
    return _with_batches(setup, batches, found)


def _model_of(found: Recorded) -> nn.Module:
    """The one module that is called, or all of them under the names that the script gives them."""
    modules = list({id(one.func): one.func for iteration in found.iterations for one in iteration.calls}.values())
    modules = [one for one in modules if not any(one is not other and one in set(other.modules()) for other in modules)]
    held = {id(parameter) for one in modules for parameter in one.parameters()}
    loose = [
        one
        for one in constants_of(found.iterations[0].entries)
        if isinstance(one, nn.Parameter) and id(one) not in held
    ]
    if len(modules) == 1 and not loose:
        return modules[0]
    holder = nn.Module()
    for index, one in enumerate(modules):
        name = found.names.get(id(one), f"{type(one).__name__.lower()}_{index}").replace(".", "_")
        holder.add_module(name if name not in holder._modules else f"{name}_{index}", one)
    for index, parameter in enumerate(loose):
        holder.register_parameter(f"parameter_{index}", parameter)
    return holder


def _with_batches(setup: Setup, batches: Sequence[Any], found: Recorded) -> Setup:
    """Fresh batches, unless the script trains on the same one at each step."""
    first = [id(one) for one in constants_of(found.iterations[0].entries)]
    if any([id(one) for one in constants_of(other.entries)] != first for other in found.iterations[1:]):
        setup.batches = lambda step: batches[step % len(batches)]
    return setup


def _loop(setup: Setup, found: Recorded) -> TrainStep:
    """The script's loop body: gradients dropped or not, clipped or not."""
    compute_loss, scheduler = setup.compute_loss, found.scheduler

    def train_step(model: nn.Module, inputs: Any, targets: Any, loss_fn: Any, optimizer: Any) -> Any:
        if not found.keeps_gradients:
            optimizer.zero_grad()
        if compute_loss is not None:
            loss = compute_loss(model, inputs)
        else:
            outputs = call_model(model, inputs)
            loss = getattr(outputs, "loss", outputs) if loss_fn is None else loss_fn(outputs, targets)
        loss.backward()
        for clip in found.clips.values():
            clip.function(
                [one for group in optimizer.param_groups for one in group["params"]], *clip.args, **clip.kwargs
            )
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        return loss

    return train_step
