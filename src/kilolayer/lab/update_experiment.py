"""What the runs of ``kilolayer lab update`` share, and what a set of finished ones comes to."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kilolayer.lab.experiment import OnStep, finished_runs
from kilolayer.lab.update_data import UpdateData, load_update_data
from kilolayer.lab.update_network import network_depth
from kilolayer.lab.update_run import UpdateRun, run_update
from kilolayer.lab.update_schemes import get_update_scheme
from kilolayer.lab.update_theory import predict_update_sums

LINEAR_BELOW = 0.3
"""Larger updates are no longer proportional to the step: two outputs of one size are at most 2 apart."""


@dataclass(frozen=True)
class UpdateExperiment:
    """A set of runs that share all settings but network, scheme, depth, optimizer, learning rate and seed."""

    runs: tuple[UpdateRun, ...]

    @property
    def continues(self) -> bool:
        """A run takes seconds to a minute; one that was stopped starts anew."""
        return False

    def shared(self) -> dict[str, Any]:
        """The settings that decide whether two experiments may share a folder."""
        run = self.runs[0]
        return {"lab": "update", "width": run.width, "steps": run.num_steps, "batch_size": run.batch_size}

    def load_data(self) -> UpdateData:
        """Text for the Transformers, digits for the MLPs."""
        return load_update_data({run.network for run in self.runs})

    def data_check(self, data: UpdateData) -> str:
        """Checksums of what is used."""
        return data.check

    def carry_out(self, run: UpdateRun, data: UpdateData, folder: Path, on_step: OnStep) -> dict[str, Any]:
        """One run."""
        return run_update(run, data, on_step)


class Setting(NamedTuple):
    """What runs of several depths and seeds have in common."""

    network: str
    scheme: str
    optimizer: str
    lr: float


@dataclass(frozen=True, eq=False)
class Curve:
    """The model update of one setting by depth.

    Attributes:
        setting: network, scheme, optimizer and rate.
        num_branches: depths, ascending.
        results: the runs' results at each depth, seed by seed, with their ``seed``.
    """

    setting: Setting
    num_branches: tuple[int, ...]
    results: tuple[tuple[dict[str, Any], ...], ...]

    def updates(self, key: str, step: int) -> list[list[float]]:
        """Updates after a step by depth and seed; an entry is short where runs ended before."""
        return [[r[key][str(step)] for r in at if str(step) in r[key]] for at in self.results]

    def growth(self, key: str, step: int) -> float | None:
        """Exponent of depth that the update grows with while it is small, see :func:`slope`."""
        return slope(list(self._small_updates(key, step).values()))

    def _small_updates(self, key: str, step: int) -> dict[int, list[tuple[int, float]]]:
        """Depths and updates below :data:`LINEAR_BELOW`, by seed."""
        found: dict[int, list[tuple[int, float]]] = {}
        for depth, results in zip(self.num_branches, self.results, strict=True):
            for result in results:
                value = result[key].get(str(step))
                if value is not None and value < LINEAR_BELOW:
                    found.setdefault(result["seed"], []).append((depth, value))
        return found

    @property
    def sums(self) -> list[float] | None:
        """Theory's update sum by depth, where theory has one."""
        sums = []
        for num_branches in self.num_branches:
            depth, stack = network_depth(self.setting.network, num_branches)
            found = predict_update_sums(get_update_scheme(self.setting.scheme), depth, stack)
            if found is None:
                return None
            sums.append(found.of(self.setting.optimizer))
        return sums

    def sum_growth(self, key: str, step: int) -> float | None:
        """The same exponent of theory's update sum, over the depths and seeds that :meth:`growth` takes."""
        if self.sums is None:
            return None
        sums = dict(zip(self.num_branches, self.sums, strict=True))
        small = self._small_updates(key, step)
        return slope([[(depth, sums[depth]) for depth, _ in of_seed] for of_seed in small.values()])


def slope(series: list[list[tuple[int, float]]]) -> float | None:
    """Least-squares slope of log value against log depth, one for all series, each with a height of its own.

    Seeds differ in the size of their gradients, so a seed that was run at some depths only must not bend the line.
    ``None`` where no series has two depths, or where a value is 0.
    """
    if any(value <= 0 for one in series for _, value in one):
        return None
    products = squares = 0.0
    for one in series:
        depths, values = np.log(np.array(one, dtype=float)).T
        products += float((depths - depths.mean()) @ (values - values.mean()))
        squares += float(((depths - depths.mean()) ** 2).sum())
    return products / squares if squares > 0 else None


def load_curves(experiment: UpdateExperiment, folder: Path) -> list[Curve]:
    """The finished runs of a folder, by setting in the order of the experiment."""
    found = finished_runs(experiment, folder)
    order = list(dict.fromkeys(_setting(run) for run in experiment.runs))
    runs = sorted(found, key=lambda run: (order.index(_setting(run)), run.num_branches, run.seed))
    curves = []
    for setting, of_setting in groupby(runs, key=_setting):
        by_depth = [(depth, tuple(of_depth)) for depth, of_depth in groupby(of_setting, key=lambda r: r.num_branches)]
        results = tuple(tuple(found[run] | {"seed": run.seed} for run in at) for _, at in by_depth)
        curves.append(Curve(setting, tuple(depth for depth, _ in by_depth), results))
    return curves


def _setting(run: UpdateRun) -> Setting:
    return Setting(run.network, run.scheme, run.optimizer, run.lr)
