"""Parameters around ``optimizer.step``: their norms, their gradients' norms, and how far the step moved them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from kilolayer.monitor.rows import RowSink
from kilolayer.monitor.statistics import Scratch, Value, is_distributed, l2_norm, l2_norms

SMALL = 1 << 14
"""Entries up to which the differences of many parameters are taken in one fused call: of larger ones each is read
again while it is in the cache."""

Vector = np.ndarray | Tensor


class ParameterReader:
    """Reads a model's parameters before and after an optimizer's step.

    The update is the difference of a parameter before and after, whatever the optimizer did, and so costs one copy
    of the parameters on sampled steps. Plain SGD needs none: its update is ``lr * gradient``, and that is what is
    reported (before the sum with the weight is rounded; in half precision, where rounding may swallow an update,
    the difference is measured).

    Args:
        parameters: the model's parameters by name, each once.
        optimizer: ``None`` where there is no update to measure.
        rows: takes what is found.
        weights_only: norms and updates of matrices alone, or of every parameter.
    """

    def __init__(
        self,
        parameters: Sequence[tuple[str, nn.Parameter]],
        optimizer: torch.optim.Optimizer | None,
        rows: RowSink,
        *,
        weights_only: bool,
    ):
        self.parameters = [parameter for _, parameter in parameters]
        self.optimizer = optimizer
        self.rows = rows
        is_weight = np.array([parameter.dim() >= 2 for parameter in self.parameters], dtype=bool)
        self._recorded = is_weight if weights_only else np.ones_like(is_weight)
        self._is_weight = is_weight
        self._everywhere = np.arange(len(self.parameters))
        self._moving = [p for p, recorded in zip(self.parameters, self._recorded, strict=True) if recorded]
        self._codes = {
            key: np.array([rows.code(name, *key) for name, _ in parameters], np.int32)
            for key in (("param", "l2_norm"), ("param_grad", "l2_norm"), ("update", "l2_norm"))
        }
        self._codes["update", "update_ratio"] = np.array(
            [rows.code(name, "update", "update_ratio") for name, _ in parameters], np.int32
        )
        self.total: Vector | None = None
        """Norm of all gradients read since it was last taken, ``(1,)``."""
        self._scratch = Scratch()
        self._before: list[Tensor] = []
        self._sizes: Vector = np.empty(0)
        self._grad_norms: Vector = np.empty(0)

    def clear(self) -> None:
        """Give back all memory held between steps."""
        self._before = []
        self._scratch.clear()

    @torch.no_grad()
    def read_gradients(self, step: int, *, is_sampled: bool, scale: Tensor | None = None) -> None:
        """Report the gradients' norms, of the weights' alone or, on a sampled step, of all recorded.

        ``scale`` is what the loss was multiplied by, where the gradients still are.
        """
        grads = [grad for parameter in self.parameters if (grad := parameter.grad) is not None]
        places = self._everywhere
        if len(grads) < len(self.parameters):
            places = np.flatnonzero([parameter.grad is not None for parameter in self.parameters])
        norms: Vector = np.empty(0)
        if grads:
            norms = l2_norms([_dense(grad) if grad.is_sparse else grad for grad in grads])
            if scale is not None:
                norms = norms / (scale.to(norms) if isinstance(norms, Tensor) else float(scale))
            kept = (self._recorded if is_sampled else self._is_weight)[places]
            self.rows.put(step, self._codes["param_grad", "l2_norm"][places[kept]], _pick(norms, np.flatnonzero(kept)))
            self.total = total_norm(norms)
        if is_sampled:
            self._grad_norms = _spread(norms, places, len(self.parameters))

    @torch.no_grad()
    def read_sizes(self, step: int, *, copy: bool) -> None:
        """Report the parameters' norms; ``copy``: keep them to compare with, whatever the optimizer is."""
        if not self._moving:
            return
        self._sizes = l2_norms(self._moving)
        self.rows.put(step, self._codes["param", "l2_norm"][self._recorded], self._sizes)
        if copy or self._plain_lrs() is None:
            self._copy()

    @torch.no_grad()
    def read_updates(self, step: int, *, measured: bool) -> None:
        """Report each parameter's update; ``measured``: from the difference, whatever the optimizer is."""
        if not self._moving:
            return
        lrs = None if measured else self._plain_lrs()
        if lrs is None:
            updates = self._differences()
        else:
            updates = _pick(self._grad_norms, np.flatnonzero(self._recorded))
            updates = updates * (torch.as_tensor(lrs).to(updates) if isinstance(updates, Tensor) else lrs)
        self._put_moves(step, updates, self._sizes)

    def _put_moves(self, step: int, updates: Vector, sizes: Vector) -> None:
        if isinstance(updates, Tensor) != isinstance(sizes, Tensor):  # parameters on the host and on accelerators
            updates, sizes = _to_host(updates), _to_host(sizes)
        self.rows.put(step, self._codes["update", "l2_norm"][self._recorded], updates)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = updates / sizes
        self.rows.put(step, self._codes["update", "update_ratio"][self._recorded], ratios)

    def _tensors(self) -> list[Tensor]:
        """The recorded parameters, of each the part that is in this process."""
        return [local_part(parameter) for parameter in self._moving]

    def _copy(self) -> None:
        tensors = self._tensors()
        if [t.device for t in self._before] != [t.device for t in tensors]:
            self._before = [torch.empty_like(tensor) for tensor in tensors]
        torch._foreach_copy_(self._before, tensors)

    def _differences(self) -> Vector:
        moving = self._tensors()
        sizes = np.array([tensor.numel() for tensor in moving])
        small, large = np.flatnonzero(sizes <= SMALL), np.flatnonzero(sizes > SMALL)
        found: list[Value] = [0.0] * len(sizes)
        if len(small):
            norms = l2_norms(torch._foreach_sub([moving[i] for i in small], [self._before[i] for i in small]))
            for place, norm in zip(small, norms, strict=True):
                found[place] = (norm, 1.0) if isinstance(norm, Tensor) else float(norm)
        for place in large:
            before = self._before[place]
            found[place] = l2_norm(torch.sub(moving[place], before, out=self._scratch.like(before)))
        if any(isinstance(value, float) for value in found):
            return np.array([v if isinstance(v, float) else float(v[0]) for v in found], np.float64)
        moves = [value[0] for value in found if isinstance(value, tuple)]
        return torch.stack([move.to(moves[0].device, torch.float32) for move in moves])

    def _plain_lrs(self) -> np.ndarray | None:
        """The learning rate of each recorded parameter if the optimizer is SGD and nothing else touches them."""
        optimizer = self.optimizer
        if type(optimizer) is not torch.optim.SGD:
            return None
        if len(optimizer._optimizer_step_pre_hooks) > 1 or len(optimizer._optimizer_step_post_hooks) > 1:
            return None
        changes = ("momentum", "weight_decay", "dampening", "nesterov", "maximize")
        if any(group[name] for group in optimizer.param_groups for name in changes):
            return None
        if any(parameter.element_size() < 4 for parameter in self._moving):
            return None
        lrs = {id(p): float(group["lr"]) for group in optimizer.param_groups for p in group["params"]}
        return np.array([lrs.get(id(parameter), 0.0) for parameter in self._moving])


def local_part(x: Tensor) -> Tensor:
    """What of a tensor is in this process."""
    return x.to_local() if is_distributed(x) else x  # type: ignore[attr-defined]


def is_measurable(parameter: Tensor) -> bool:
    """Whether a parameter has a norm: floating point of two bytes or more, or complex, and memory of its own."""
    is_real = parameter.is_floating_point() and parameter.element_size() > 1
    return (is_real or parameter.is_complex()) and parameter.device.type != "meta"


def _to_host(values: Vector) -> np.ndarray:
    return values.double().cpu().numpy() if isinstance(values, Tensor) else values


def _dense(grad: Tensor) -> Tensor:
    return grad.coalesce().values()


def _pick(values: Vector, places: np.ndarray) -> Vector:
    if len(places) == len(values):
        return values
    return values[torch.from_numpy(places).to(values.device)] if isinstance(values, Tensor) else values[places]


def total_norm(norms: Vector) -> Vector:
    """Norm of everything from the norms of its parts, ``(1,)``."""
    if isinstance(norms, Tensor):
        return torch.linalg.vector_norm(norms).reshape(1)
    with np.errstate(invalid="ignore", over="ignore"):
        return np.sqrt(np.sum(norms**2, keepdims=True))


def _spread(values: Vector, places: np.ndarray, length: int) -> Vector:
    """The values at their places, 0 elsewhere."""
    if len(values) == length:
        return values
    if isinstance(values, Tensor):
        out = values.new_zeros(length)
        out[torch.from_numpy(places).to(values.device)] = values
        return out
    filled = np.zeros(length)
    filled[places] = values
    return filled
