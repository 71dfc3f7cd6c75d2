"""One quantity of one recording over steps and depth, with what is missing kept apart from what is not finite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kilolayer.recording import Recording, Site
from kilolayer.report.bands import Band, in_bands
from kilolayer.report.depth import depth_ticks
from kilolayer.report.quantity import Quantity
from kilolayer.report.ratios import undefined_ratios


@dataclass(frozen=True, eq=False)
class Grid:
    """Values over steps and depth.

    ``steps`` has shape ``(num_steps,)``; ``values``, ``recorded`` (a row exists) and ``nonfinite`` (the value,
    or one of the elements it summarizes, is NaN or infinite) have shape ``(num_steps, num_sites)``. Sites stand in
    ``bands``; one band where nothing else is said.
    """

    quantity: Quantity
    sites: tuple[Site, ...]
    steps: np.ndarray
    values: np.ndarray
    recorded: np.ndarray
    nonfinite: np.ndarray
    bands: tuple[Band, ...] = ()

    def __post_init__(self) -> None:
        if not self.bands:
            object.__setattr__(self, "bands", (Band("", 0, len(self.sites)),))

    @cached_property
    def scaled(self) -> np.ndarray:
        """Values on the scale they are drawn on (log10 or as they are); NaN where there is none to draw."""
        with np.errstate(divide="ignore", invalid="ignore"):
            scaled = np.log10(self.values) if self.quantity.log else self.values
        return np.where(np.isfinite(scaled) & ~self.nonfinite, scaled, np.nan)

    @property
    def first_nonfinite_step(self) -> int | None:
        """The first step with a non-finite value; ``None`` when all are finite."""
        bad = self.nonfinite.any(axis=1)
        return int(self.steps[np.argmax(bad)]) if bad.any() else None

    @cached_property
    def block_numbers(self) -> list[int]:
        """The number people give each site's block, from 1; its place in line where it has no block."""
        return [
            place + 1 if site.block_index is None else site.block_index + 1 for place, site in enumerate(self.sites)
        ]

    @property
    def is_mixed(self) -> bool:
        """Whether neighboring sites play different parts in their blocks: no line joins those."""
        return len(self.bands) == 1 and len(set(self.block_numbers)) < len(self.sites)

    def tick_places(self, *, at_most: int = 6) -> list[int]:
        """Indices of about ``at_most`` sites to label; in every band the first, and the last in the last one."""
        places: list[int] = []
        for band in self.bands:
            numbers = self.block_numbers[band.first : band.end]
            inside = depth_ticks(numbers, at_most=max(at_most // len(self.bands), 2))
            kept = inside if band is self.bands[-1] or len(inside) < 2 else inside[:-1]
            places += [band.first + place for place in kept]
        return places


class GridReader:
    """Reads grids out of one recording."""

    def __init__(self, recording: Recording):
        self.recording = recording

    def read(self, quantity: Quantity) -> Grid | None:
        """The grid of a quantity; ``None`` when nothing of it was recorded.

        A recording whose site table marks no depth (no blocks, or no table at all) falls back to all weights,
        then to every site with rows of the quantity: what was recorded is never drawn as nothing.
        """
        if not self.recording.has(quantity.role, quantity.stat):
            return None
        sites = self._marked_sites(quantity)
        bands: tuple[Band, ...] = ()
        if quantity.where == "weights":
            sites, bands = in_bands(sites)
        steps, values = self.recording.matrix(quantity.role, quantity.stat, sites)
        if not len(steps):
            sites, bands = self._recorded_sites(quantity), ()
            steps, values = self.recording.matrix(quantity.role, quantity.stat, sites)
        recorded = self._recorded(quantity, sites, values)
        if quantity.stat == "update_ratio":
            recorded &= ~undefined_ratios(self.recording, sites)
        nonfinite = recorded & ~np.isfinite(values) | self._flagged(quantity.role, sites, steps)
        return Grid(quantity, sites, steps, values, recorded, nonfinite, bands)

    def _marked_sites(self, quantity: Quantity) -> tuple[Site, ...]:
        if quantity.where == "stream":
            return self.recording.stream()
        weights = sorted((s for s in self.recording.sites if s.kind == "weight"), key=lambda s: s.order)
        return self.recording.weights() or tuple(weights)

    def _recorded_sites(self, quantity: Quantity) -> tuple[Site, ...]:
        """Every site with rows of the quantity, those of the site table first and in its order."""
        names = self.recording.site_names(quantity.role, quantity.stat)
        table = {site.name: site for site in sorted(self.recording.sites, key=lambda s: s.order)}
        order = max((site.order for site in table.values()), default=-1)
        unknown = [name for name in names if name not in table]
        recorded = set(names)
        known = [site for name, site in table.items() if name in recorded]
        return (*known, *(Site(name, name, "output", order + 1 + place) for place, name in enumerate(unknown)))

    def _recorded(self, quantity: Quantity, sites: Sequence[Site], values: np.ndarray) -> np.ndarray:
        missing = np.isnan(values)
        if not missing.any():
            return ~missing
        # A recorded NaN and a missing row look alike in a matrix of values.
        return self.recording.recorded(quantity.role, quantity.stat, sites)

    def _flagged(self, role: str, sites: Sequence[Site], steps: np.ndarray) -> np.ndarray:
        """Where the recording counts non-finite elements, on the given steps and sites."""
        flagged = np.zeros((len(steps), len(sites)), dtype=bool)
        if role == "run" or not self.recording.has(role, "nonfinite"):
            return flagged
        counted, counts = self.recording.matrix(role, "nonfinite", sites)
        shared, into, source = np.intersect1d(steps, counted, return_indices=True)
        if len(shared):
            flagged[into] = np.nan_to_num(counts[source]) > 0
        return flagged


def run_series(recording: Recording, stat: str) -> tuple[np.ndarray, np.ndarray]:
    """A scalar of the run, such as ``"loss"``: steps and values, both of shape ``(num_steps,)``."""
    return recording.series("run", "run", stat)


def first_nonfinite_step(recording: Recording, grids: Sequence[Grid | None]) -> int | None:
    """The first step at which the loss or any drawn quantity was not finite; ``None`` when all are finite."""
    steps, losses = run_series(recording, "loss")
    found = [int(step) for step in steps[~np.isfinite(losses)][:1]]
    for grid in grids:
        step = grid.first_nonfinite_step if grid is not None else None
        found += [] if step is None else [step]
    return min(found, default=None)
