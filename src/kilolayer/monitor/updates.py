"""One or several optimizers around their steps: gradients, parameters and updates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kilolayer.monitor.rows import HeldRows, RowQueue
from kilolayer.monitor.sharded import ShardedParameterReader
from kilolayer.monitor.statistics import is_distributed
from kilolayer.monitor.weights import ParameterReader, is_measurable, total_norm

Parameters = Sequence[tuple[str, nn.Parameter]]


class UpdateWatch:
    """Reads the parameters of each optimizer around its step; those of none around the last one's.

    Args:
        parameters: the model's parameters by name, each once.
        optimizers: the last one ends a step; none at all where there is no update to measure.
        rows: takes what is found.
        is_full: every parameter, and gradients on every step; else weight matrices on sampled steps alone.
        num_processes: that merge what they find; 1 where this one records its own.
    """

    def __init__(
        self,
        parameters: Parameters,
        optimizers: Sequence[torch.optim.Optimizer],
        *,
        rows: RowQueue,
        is_full: bool,
        num_processes: int,
    ):
        self.optimizers = optimizers
        self.rows = rows
        self.is_full = is_full
        self.is_sharded = any(is_distributed(parameter) for _, parameter in parameters)
        self.held = [HeldRows(rows) for _ in optimizers] if len(optimizers) > 1 and not self.is_sharded else []
        self.readers: list[ParameterReader] = []
        self._has_closure = False
        self._grad_norm_code = np.array([rows.code("run", "run", "grad_norm")], np.int32)
        for number, owned in enumerate(_by_owner(parameters, optimizers)):
            optimizer = optimizers[number] if optimizers else None
            sink = self.held[number] if self.held else rows
            if self.is_sharded:
                reader: ParameterReader = ShardedParameterReader(
                    owned, optimizer, sink, weights_only=not is_full, num_processes=num_processes
                )
            else:
                reader = ParameterReader(owned, optimizer, sink, weights_only=not is_full)
            self.readers.append(reader)

    @property
    def sharded(self) -> list[ShardedParameterReader]:
        """The readers whose numbers must be added up over processes."""
        return [reader for reader in self.readers if isinstance(reader, ShardedParameterReader)]

    def before(
        self, optimizer: torch.optim.Optimizer, args: Any, kwargs: dict[str, Any], *, step: int, is_sampled: bool
    ) -> None:
        """An optimizer is about to step."""
        number = self._number(optimizer)
        if self.held:
            self.held[number].drop()
        reader = self.readers[number]
        # A closure computes the gradients inside the step, so they are read after it.
        self._has_closure = kwargs.get("closure") is not None or any(callable(value) for value in args)
        if not self._has_closure:
            self._read_gradients(reader, step, is_sampled, getattr(optimizer, "grad_scale", None))
        if is_sampled:
            reader.read_sizes(step, copy=self._has_closure)

    def after(self, optimizer: torch.optim.Optimizer, *, step: int, is_sampled: bool) -> None:
        """An optimizer has stepped."""
        reader = self.readers[self._number(optimizer)]
        if self._has_closure:
            self._read_gradients(reader, step, is_sampled)
        if is_sampled:
            reader.read_updates(step, measured=self._has_closure)

    def read_without_optimizer(self, *, step: int, is_sampled: bool) -> None:
        """Gradients and sizes of a model that nothing updates."""
        self._read_gradients(self.readers[0], step, is_sampled)
        if is_sampled:
            self.readers[0].read_sizes(step, copy=False)

    def end_step(self, step: int) -> None:
        """Report what was held until the step's end, and the norm of all its gradients."""
        for held in self.held:
            held.release()
        totals = [reader.total for reader in self.readers if reader.total is not None]
        if totals:
            self.rows.put(step, self._grad_norm_code, totals[0] if len(totals) == 1 else _joint(totals))
        for reader in self.readers:
            reader.total = None

    def ends_step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether a step is over when this optimizer has stepped."""
        return optimizer is self.optimizers[-1]

    def learning_rates(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """By name: ``lr``, ``lr_1`` and so on through the groups of all optimizers."""
        number = self._number(optimizer)
        first = sum(len(other.param_groups) for other in self.optimizers[:number])
        names = ["lr" if index == 0 else f"lr_{index}" for index in range(first, first + len(optimizer.param_groups))]
        return {name: group["lr"] for name, group in zip(names, optimizer.param_groups, strict=True)}

    def count_parameters(self) -> int:
        """How many parameters the optimizers hold; it changes where layers are added."""
        return sum(len(group["params"]) for optimizer in self.optimizers for group in optimizer.param_groups)

    def clear(self) -> None:
        """Give back all memory held between steps."""
        for reader in self.readers:
            reader.clear()

    def _read_gradients(
        self, reader: ParameterReader, step: int, is_sampled: bool, scale: Tensor | None = None
    ) -> None:
        # Reading every gradient once more is most of what a step that is not sampled would cost.
        if self.is_full or is_sampled:
            reader.read_gradients(step, is_sampled=is_sampled, scale=scale)

    def _number(self, optimizer: torch.optim.Optimizer) -> int:
        return next(number for number, other in enumerate(self.optimizers) if other is optimizer)


def _by_owner(parameters: Parameters, optimizers: Sequence[torch.optim.Optimizer]) -> list[Parameters]:
    """The parameters that have a norm, by the optimizer that moves them; the last takes those of none."""
    measurable = [(name, parameter) for name, parameter in parameters if is_measurable(parameter)]
    if len(optimizers) < 2:
        return [measurable]
    owner = {
        id(p): number for number, one in enumerate(optimizers) for group in one.param_groups for p in group["params"]
    }
    last = len(optimizers) - 1
    return [
        [(name, p) for name, p in measurable if owner.get(id(p), last) == number] for number in range(len(optimizers))
    ]


def _joint(totals: Sequence[np.ndarray | Tensor]) -> np.ndarray | Tensor:
    if all(isinstance(total, Tensor) for total in totals):
        tensors = [total for total in totals if isinstance(total, Tensor)]
        return total_norm(torch.cat([tensor.to(tensors[0]) for tensor in tensors]))
    return total_norm(np.concatenate([np.asarray(t.cpu() if isinstance(t, Tensor) else t, np.float64) for t in totals]))
