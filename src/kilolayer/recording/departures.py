"""Which places of a network left their own band on the way to a spike, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kilolayer.recording.recording import Recording
from kilolayer.recording.site import Site

WINDOW = 128
"""Steps a jump is measured against."""

NUM_SDS = 6.0
"""Standard deviations above the window's mean that make a jump."""

MIN_HISTORY = 16
"""Finite steps before a window says what is usual."""

MIN_SD_SHARE = 0.01
"""Least standard deviation, as a share of the mean: where a norm hardly varies, rounding would count as a jump."""

LOOKBACK = 16
"""Steps before a spike in which a layer's own jump is looked for."""

ALIKE = 4.0
"""Gradients that rose by the largest factor over this one or more count as carried from one layer to the next."""


@dataclass(frozen=True)
class Departure:
    """A place that left its own band: above mean + 6 sd of its window, or not finite, and so up to the spike.

    ``role`` is ``activation``, ``activation_grad`` or ``param_grad``. ``factor`` is the last value up to the spike
    over the window's mean; infinite where it is not finite.
    """

    site: str
    role: str
    step: int
    factor: float


@dataclass(frozen=True)
class Band:
    """How a jump is told from noise: the number of rows before it, and of standard deviations."""

    window: int = WINDOW
    num_sds: float = NUM_SDS

    def jumps(
        self, steps: np.ndarray, values: np.ndarray, step: int, *, nonfinite: bool
    ) -> list[tuple[int, int, float]]:
        """The columns that jumped and stayed up to a step: column, step of the jump, factor.

        Args:
            steps: the steps of the rows, ascending, ``(num_steps,)``.
            values: one column per place, NaN where there is no row, ``(num_steps, num_places)``.
            step: rows of later steps are not looked at.
            nonfinite: whether a value that is not finite is a jump, in a column that had a finite one before.
        """
        at = int(np.searchsorted(steps, step, side="right")) - 1
        if at < 0 or steps[at] < step - LOOKBACK:
            return []
        first = int(np.searchsorted(steps, step - LOOKBACK))
        start = min(at, max(first, MIN_HISTORY))
        past = values[max(0, start - self.window) : start]
        mean, sd = usual(past)
        recent = values[start : at + 1]
        has_jumped = recent > mean + self.num_sds * sd
        if nonfinite:
            has_jumped |= ~np.isfinite(recent) & np.isfinite(past).any(0)
        found = []
        for column in np.flatnonzero(has_jumped[-1]):
            calm = np.flatnonzero(~has_jumped[:, column])
            since = start + (int(calm[-1]) + 1 if len(calm) else 0)
            last = recent[-1, column]
            found.append((int(column), int(steps[since]), float(last / mean[column]) if np.isfinite(last) else np.inf))
        return found


def usual(past: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each column's finite values; NaN for fewer than 16."""
    usable = np.isfinite(past)
    count = usable.sum(0)
    enough = count >= MIN_HISTORY
    values = np.where(usable, past, 0.0).astype(np.float64)
    mean = values.sum(0) / np.maximum(count, 1)
    sd = np.sqrt(np.where(usable, (values - mean) ** 2, 0.0).sum(0) / np.maximum(count, 1))
    return np.where(enough, mean, np.nan), np.where(enough, np.maximum(sd, MIN_SD_SHARE * mean), np.nan)


class Places:
    """The places of a recording and their values over time."""

    def __init__(self, recording: Recording, band: Band):
        self._band = band
        self._sites = sorted(recording.sites, key=lambda site: site.order)
        self.tensors = [site for site in self._sites if site.kind not in ("weight", "parameter")]
        self._depth = {site.name: place for place, site in enumerate(self.tensors)}
        self._activations = recording.matrix("activation", "rms", self.tensors)
        self._gradients = recording.matrix("activation_grad", "rms", self.tensors)

    def departures(
        self, step: int, weights: Sequence[tuple[Site, int, float]], *, nonfinite: bool
    ) -> tuple[Departure, ...]:
        """The places that left their band up to a step, in order of steps; of one step the forward pass before the
        backward pass, each in its own direction.

        Of the backward pass, gradients that rose alike count as one carried to the next, and come before smaller ones.

        Args:
            step: of the spike.
            weights: weight matrices whose gradient jumped, with the step and the factor.
            nonfinite: whether the spike is not finite, so that such values count.
        """
        found: list[tuple[tuple[float, ...], Departure]] = []
        for column, since, factor in self._jumps(self._activations, step, nonfinite=nonfinite):
            found.append(((since, 0, column), Departure(self.tensors[column].name, "activation", since, factor)))
        backward = [(site, "param_grad", since, factor) for site, since, factor in weights]
        for column, since, factor in self._jumps(self._gradients, step, nonfinite=nonfinite):
            backward.append((self.tensors[column], "activation_grad", since, factor))
        largest: dict[int, float] = {}
        for _, _, since, factor in backward:
            largest[since] = max(largest.get(since, 0.0), factor)
        for site, role, since, factor in backward:
            rank = 2 if factor * ALIKE < largest[since] else 1
            found.append(((since, rank, -self._depth_of(site)), Departure(site.name, role, since, factor)))
        return tuple(departure for _, departure in sorted(found, key=lambda one: one[0]))

    def first_nonfinite(self, step: int) -> str | None:
        """The first activation of a sampled step that is not finite."""
        steps, values = self._activations
        row = np.flatnonzero(steps == step)
        if not len(row):
            return None
        bad = np.flatnonzero(~np.isfinite(values[row[0]]) & np.isfinite(values).any(0))
        return self.tensors[bad[0]].name if len(bad) else None

    def _jumps(
        self, rows: tuple[np.ndarray, np.ndarray], step: int, *, nonfinite: bool
    ) -> list[tuple[int, int, float]]:
        return self._band.jumps(*rows, step, nonfinite=nonfinite) if len(rows[0]) else []

    def _depth_of(self, site: Site) -> float:
        """Where a site stands along the forward pass: a weight just before what its module or its block puts out."""
        if site.name in self._depth:
            return self._depth[site.name]
        same_module = [place for place, tensor in enumerate(self.tensors) if tensor.path == site.path]
        same_block = [
            place
            for place, tensor in enumerate(self.tensors)
            if site.block_index is not None and tensor.block_index == site.block_index
        ]
        found = same_module or same_block
        # Weights of one block keep their own order.
        share = site.order / (1 + self._sites[-1].order)
        return (found[-1] if found else self._fraction(site) * len(self.tensors)) - 1 + 0.5 * share

    def _fraction(self, site: Site) -> float:
        """How far down the list of parameters a site is, where nothing else says how deep it is."""
        weights = [one for one in self._sites if one.kind in ("weight", "parameter")]
        return weights.index(site) / len(weights)
