"""Everything a step may change, kept aside and put back bit by bit."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kilolayer.check.setup import Setup
from kilolayer.structure.schemas import tensors_in


class Snapshot:
    """The values of a set-up at one moment; :meth:`restore` puts them back into the same objects.

    Kept are parameters, buffers and other attributes of the modules and their modes, gradients, the optimizer's,
    scheduler's and scaler's state, the batch's tensors, and the random state of Python, NumPy, PyTorch and of
    generators held in attributes. What closures and other objects hold is out of reach.

    Args:
        setup: whose objects are kept.
        extra: further tensors a step may change, such as parameters the model does not list.
    """

    def __init__(self, setup: Setup, extra: Iterable[Tensor] = ()):
        modules = [part for part in (setup.model, setup.loss_fn, setup.compute_loss) if isinstance(part, nn.Module)]
        self._tensors: dict[int, tuple[Tensor, Tensor]] = {}
        self._grads: dict[int, tuple[Tensor, Tensor | None, Tensor | None]] = {}
        self._objects: dict[int, tuple[Any, dict[str, Any]]] = {}
        self._containers: dict[int, tuple[Any, Any]] = {}
        self._generators: dict[int, tuple[torch.Generator, Tensor]] = {}
        for module in dict.fromkeys(one for part in modules for one in part.modules()):
            self._keep_object(module)
        for part in (setup.optimizer, setup.scheduler, setup.scaler):
            if part is not None:
                self._keep_object(part)
        for tensor in [*tensors_in(setup.batch), *extra]:
            self._keep_tensor(tensor)
        self._random = random.getstate(), np.random.get_state(), torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []

    def restore(self) -> None:
        """Put everything back."""
        for target, attributes in self._objects.values():
            vars(target).clear()
            vars(target).update(attributes)
        for container, content in self._containers.values():
            container.clear()
            container.update(content) if isinstance(content, (dict, set)) else container.extend(content)
        with torch.no_grad():
            for tensor, value in self._tensors.values():
                _write(tensor, value)
            for leaf, grad, kept_grad in self._grads.values():
                if grad is not None and kept_grad is not None:
                    _write(grad, kept_grad)
                leaf.grad = grad
        for generator, state in self._generators.values():
            generator.set_state(state)
        python, numpy, cpu = self._random
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)

    def _keep_object(self, target: Any) -> None:
        if id(target) in self._objects or not hasattr(target, "__dict__"):
            return
        self._objects[id(target)] = (target, dict(vars(target)))
        for value in vars(target).values():
            self._keep_value(value)

    def _keep_value(self, value: Any) -> None:
        """Tensors, generators, and containers with what is in them; of other objects only which one it is."""
        if isinstance(value, Tensor):
            self._keep_tensor(value)
        elif isinstance(value, torch.Generator):
            self._generators.setdefault(id(value), (value, value.get_state()))
        elif isinstance(value, (list, dict, set)) and id(value) not in self._containers:
            self._containers[id(value)] = (value, _shallow(value))
            for one in value.values() if isinstance(value, dict) else value:
                self._keep_value(one)
            for key in value if isinstance(value, dict) else ():
                self._keep_value(key)
        elif isinstance(value, tuple):
            for one in value:
                self._keep_value(one)

    def _keep_tensor(self, tensor: Tensor) -> None:
        if id(tensor) in self._tensors or tensor.is_meta:
            return
        self._tensors[id(tensor)] = (tensor, tensor.detach().clone())
        if tensor.is_leaf and tensor.requires_grad:
            grad = tensor.grad
            self._grads[id(tensor)] = (tensor, grad, None if grad is None else grad.detach().clone())


@contextmanager
def kept(setup: Setup, extra: Iterable[Tensor] = ()) -> Iterator[Snapshot]:
    """Within, a set-up may be trained; behind, it is as it was."""
    snapshot = Snapshot(setup, extra)
    try:
        yield snapshot
    finally:
        snapshot.restore()


def _shallow(value: Any) -> Any:
    # A plain copy of contents: a defaultdict's or an OrderedDict's own copy would keep more than that.
    if isinstance(value, dict):
        return dict(value)
    return set(value) if isinstance(value, set) else list(value)


def _write(tensor: Tensor, value: Tensor) -> None:
    """Values back into the same memory, unless they are there already."""
    target = tensor.detach()
    if target.shape != value.shape or target.dtype != value.dtype:
        tensor.data = value
    elif not _same_bits(target, value):
        target.copy_(value)


def _same_bits(one: Tensor, other: Tensor) -> bool:
    # NaN is unlike itself and copied again, which changes nothing; -0 equals 0, and is told by its sign.
    if one.device != other.device or one.layout is not torch.strided or not torch.equal(one, other):
        return False
    return not one.is_floating_point() or torch.equal(torch.signbit(one), torch.signbit(other))
