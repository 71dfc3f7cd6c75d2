"""Numbers of several processes as the numbers of one: kept as sums, which add up over processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from kilolayer.monitor.rows import Key, RowQueue
from kilolayer.monitor.sharded import ShardedParameterReader
from kilolayer.monitor.statistics import Value
from kilolayer.monitor.team import PATIENCE_S, Team

MAX_STEPS_WAITING = 256
"""Steps after which processes exchange what waits though none of them was sampled."""

LAST_WORD_S = 5.0
"""How long the first process waits for the others' last numbers where an exception ended its run."""


LastWord = tuple[list[int], list[dict[str, float]], list[Tensor]]
"""Steps that wait, what was logged in each, and the vectors of sharded parameters."""


class Entry(NamedTuple):
    """One process's share of a statistic: its value over ``weight`` entries, and their mean where std needs it."""

    weight: float
    value: Value
    mean: Value = 0.0


class Merge:
    """What waits to be merged, and the exchange that merges it.

    With ``w`` entries in a process, ``rms = sqrt(sum w rms^2 / sum w)``, ``std = sqrt(sum w (std^2 + mean^2) / sum w
    - (sum w mean / sum w)^2)``, ``max_abs`` the largest, every other statistic the mean weighted by ``w``. All are
    what one process would find, but ``sample_cosine``, which sees the pairs within each process only.

    Args:
        team: the processes.
        rows: takes what was merged, in the first process.
        readers: parameters of which every process holds a part.
    """

    def __init__(self, team: Team, rows: RowQueue, readers: Sequence[ShardedParameterReader] = ()):
        self.team = team
        self.rows = rows
        self.readers = list(readers)
        self.has_met = False
        """Whether an exchange has succeeded."""
        self._sites: dict[Key, None] = {}
        self._names: dict[str, None] = {}
        self._scalars: dict[int, Mapping[str, Value]] = {}

    def log(self, step: int, scalars: Mapping[str, Value]) -> None:
        """Keep what was logged in a step until the next exchange, which averages it over the processes."""
        self._scalars[step] = dict(scalars)

    def is_due(self) -> bool:
        """Whether so many steps wait that they must be exchanged."""
        return len(self._scalars) >= MAX_STEPS_WAITING

    def exchange(self, step: int, entries: Mapping[Key, Entry]) -> None:
        """Merge all that waits and one sampled step's statistics: one sum over processes.

        Where a process met a site that the others do not know of, they agree on the sites and sum anew.
        """
        total = self._sum(entries)
        if total[-1] > 0:
            self._sites = dict.fromkeys(self.team.union([*self._sites, *entries]))
            names = [name for scalars in self._scalars.values() for name in scalars]
            self._names = dict.fromkeys(self.team.union([*self._names, *names]))
            total = self._sum(entries)
        if self.team.rank == 0:
            self._put(step, total[:-1].cpu())
        self.has_met = True
        self._forget()

    def finish(self, *, failed: bool) -> None:
        """Merge what still waits. Not a collective: a process that is gone is not waited for long."""
        own: LastWord = (list(self._scalars), self._hosted(), [reader.pack().cpu() for reader in self.readers])
        try:
            everyone = self.team.collect(own, patience_s=LAST_WORD_S if failed else PATIENCE_S)
        except Exception:
            if self.team.rank == 0:
                self.put_own()
            raise
        if everyone is None:
            return
        together = [other for other in everyone if other[0] == own[0]]
        self._put_scalars(together)
        if len(together) == self.team.size:
            self._put_sharded(
                [torch.stack(list(parts)).sum(0) for parts in zip(*(o[2] for o in together), strict=True)]
            )
        self._forget()

    # ------------------------------------------------------------------ one vector
    def _sum(self, entries: Mapping[Key, Entry]) -> Tensor:
        names = {name for scalars in self._scalars.values() for name in scalars}
        is_unknown = not (entries.keys() <= self._sites.keys() and names <= self._names.keys())
        device = self.team.device
        parts = [
            *_pack_sites(self._sites, entries, self.team),
            *(vector for scalars in self._scalars.values() for vector in _pack_scalars(self._names, scalars, device)),
            *(reader.pack().to(device) for reader in self.readers),
            torch.tensor([float(is_unknown)], dtype=torch.float64, device=device),
        ]
        return self.team.sum(torch.cat(parts))

    def _put(self, step: int, total: Tensor) -> None:
        largest = [key for key in self._sites if key[2] == "max_abs"]
        sizes = [3 * len(self._sites), len(largest) * self.team.size]
        sizes += [2 * len(self._names)] * len(self._scalars) + [reader.size() for reader in self.readers]
        sites, slots, *rest = total.split(sizes)
        self._put_sites(step, _merged(self._sites, sites.view(3, -1), slots.view(-1, self.team.size)))
        for logged_step, sums in zip(self._scalars, rest, strict=False):
            weight, value = sums.view(2, -1).numpy()
            found = {name: v / w for name, w, v in zip(self._names, weight, value, strict=True) if w > 0}
            self.rows.put_each(logged_step, {self._code("run", "run", name): v for name, v in found.items()})
        self._put_sharded(rest[len(self._scalars) :])

    def _put_sites(self, step: int, values: Tensor) -> None:
        known = [number for number, value in enumerate(values[1].tolist()) if value > 0]
        codes = np.array([self._code(*key) for key in self._sites], np.int32)
        self.rows.put(step, codes[known], values[0].numpy()[known])

    def _put_sharded(self, vectors: Sequence[Tensor]) -> None:
        totals: dict[int, float] = {}
        for reader, vector in zip(self.readers, vectors, strict=True):
            reader.unpack(vector)
            for step, square in reader.squared_totals.items():
                totals[step] = totals.get(step, 0.0) + square
        for step, square in totals.items():
            self.rows.put_each(step, {self._code("run", "run", "grad_norm"): square**0.5})

    # ------------------------------------------------------------------ without the others
    def _hosted(self) -> list[dict[str, float]]:
        return [
            {name: float(v) if isinstance(v, float) else float(v[0]) * v[1] for name, v in scalars.items()}
            for scalars in self._scalars.values()
        ]

    def put_own(self) -> None:
        """Report what this process logged, without the others."""
        self._put_scalars([(list(self._scalars), self._hosted(), [])])
        self._forget()

    def _put_scalars(self, shares: Sequence[LastWord]) -> None:
        for number, step in enumerate(shares[0][0]):
            found: dict[str, list[float]] = {}
            for _, scalars, _ in shares:
                for name, value in scalars[number].items():
                    found.setdefault(name, []).append(value)
            means = {self._code("run", "run", name): float(np.mean(v)) for name, v in found.items()}
            self.rows.put_each(step, means)

    def _forget(self) -> None:
        self._scalars = {}
        for reader in self.readers:
            reader.forget()

    def _code(self, site: str, role: str, stat: str) -> int:
        return self.rows.code(site, role, stat)


def _pack_sites(keys: Mapping[Key, None], entries: Mapping[Key, Entry], team: Team) -> list[Tensor]:
    """Weights, weighted values (or squares) and weighted means, then a slot per process for what is largest."""
    nothing = Entry(0.0, 0.0)
    found = [entry if (entry := entries.get(key, nothing)).weight > 0 else nothing for key in keys]
    weight = torch.tensor([entry.weight for entry in found], dtype=torch.float64, device=team.device)
    value = _vector([entry.value for entry in found], team.device)
    mean = _vector([entry.mean for entry in found], team.device)
    is_square = _is_square(keys).to(team.device)
    first = torch.where(is_square, value.square() + mean.square(), value)
    places = [place for place, key in enumerate(keys) if key[2] == "max_abs"]
    slots = torch.zeros(len(places), team.size, dtype=torch.float64, device=team.device)
    slots[:, team.rank] = torch.where(weight[places] > 0, value[places], -torch.inf)
    is_summed = weight > 0
    sums = (torch.where(is_summed, weight * x, 0.0) for x in (first, mean))
    return [weight, *sums, slots.flatten()]


def _pack_scalars(names: Mapping[str, None], scalars: Mapping[str, Value], device: torch.device) -> list[Tensor]:
    present = [float(name in scalars) for name in names]
    values = _vector([scalars.get(name, 0.0) for name in names], device)
    return [torch.tensor(present, dtype=torch.float64, device=device), values]


def _merged(keys: Mapping[Key, None], sums: Tensor, slots: Tensor) -> Tensor:
    """Merged values and total weights, ``(2, num_keys)``."""
    weight, first, mean = sums[0], sums[1] / sums[0], sums[2] / sums[0]
    values = torch.where(_is_square(keys), (first - mean.square()).clamp_min(0.0).sqrt(), first)
    places = [place for place, key in enumerate(keys) if key[2] == "max_abs"]
    if places:
        values[places] = slots.amax(1)
    return torch.stack([values, weight])


def _is_square(keys: Mapping[Key, None]) -> Tensor:
    return torch.tensor([key[2] in ("rms", "std") for key in keys], dtype=torch.bool)


def _vector(values: Sequence[Value], device: torch.device) -> Tensor:
    """Numbers and tensors with factors as one float64 vector."""
    out = torch.tensor([v if isinstance(v, float) else 0.0 for v in values], dtype=torch.float64, device=device)
    waiting = [(place, *value) for place, value in enumerate(values) if isinstance(value, tuple)]
    if waiting:
        places, tensors, factors = zip(*waiting, strict=True)
        found = torch.stack([tensor.to(device, torch.float64) for tensor in tensors])
        out[list(places)] = found * torch.tensor(factors, dtype=torch.float64, device=device)
    return out
