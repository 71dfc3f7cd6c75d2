"""The processes that train one model together."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Hashable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

Key = TypeVar("Key", bound=Hashable)

PATIENCE_S = 60.0
"""How long a process waits for the others outside of collectives, before it goes on without them."""

_NUMBERS = itertools.count()
"""Monitors of this process: the n-th of one process is the n-th of every other."""


class Team:
    """What the monitors of several processes need of each other: one sum per exchange, and a word at both ends.

    Whether they can work together is settled before the first sum, through the store of the process group rather
    than a collective: processes of which some have no monitor, or one of another model, then go on alone instead of
    waiting for each other for ever.

    Args:
        device: where the model is.
    """

    def __init__(self, device: torch.device):
        self.rank = distributed.get_rank()
        self.size = distributed.get_world_size()
        self.device = _collective_device(device)
        self._prefix = f"kilolayer/monitor/{next(_NUMBERS)}"
        self._signature = b""
        self._agrees: bool | None = None

    def register(self, signature: str) -> None:
        """Say what this process watches; the others must say the same."""
        self._signature = signature.encode()
        _store().set(f"{self._prefix}/{self.rank}", self._signature)

    def agrees(self) -> bool:
        """Whether all processes watch the same model alike; the first one decides, once."""
        if self._agrees is None:
            store, verdict = _store(), f"{self._prefix}/verdict"
            if self.rank == 0:
                keys = [f"{self._prefix}/{rank}" for rank in range(self.size)]
                same = store.check(keys) and all(store.get(key) == self._signature for key in keys)
                store.set(verdict, b"yes" if same else b"no")
                self._agrees = same
            else:
                store.wait([verdict], timedelta(seconds=PATIENCE_S))
                self._agrees = store.get(verdict) == b"yes"
        return self._agrees

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes; one collective."""
        total = values.to(self.device)
        distributed.all_reduce(total)
        return total

    def union(self, keys: Sequence[Key]) -> list[Key]:
        """All processes' keys, each once, in the same order everywhere."""
        gathered: list[Any] = [None] * self.size
        distributed.all_gather_object(gathered, list(keys))
        return list(dict.fromkeys(itertools.chain.from_iterable(gathered)))

    def collect(self, value: object, *, patience_s: float = PATIENCE_S) -> list[Any] | None:
        """On the first process the values of all, by rank; ``None`` elsewhere. Not a collective.

        Raises:
            RuntimeError: a process did not send its value in time.
        """
        store = _store()
        if self.rank != 0:
            store.set(f"{self._prefix}/last/{self.rank}", pickle.dumps(value))
            return None
        others = [f"{self._prefix}/last/{rank}" for rank in range(1, self.size)]
        store.wait(others, timedelta(seconds=patience_s))
        return [value, *(pickle.loads(store.get(key)) for key in others)]


def find_team(device: torch.device) -> Team | None:
    """The processes of ``torch.distributed``; ``None`` where there is only this one."""
    if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_world_size() == 1:
        return None
    return Team(device)


def _store() -> Any:
    return distributed.distributed_c10d._get_default_store()


def _collective_device(device: torch.device) -> torch.device:
    backend = distributed.get_backend()
    if backend in ("gloo", "mpi"):
        return torch.device("cpu")
    if backend == "nccl" and device.type != "cuda":
        return torch.device("cuda", torch.cuda.current_device())
    return device
