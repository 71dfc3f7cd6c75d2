"""Finding the largest learning rate that a network stands: what counts as stable, and which rate to try next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from kilolayer.lab.depth_run import DepthRun

DEFAULT_LRS: tuple[float, ...] = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)
DEFAULT_SCHEMES: tuple[str, ...] = ("post-ln", "deepnorm:deepnet", "pre-ln", "keel", "sandwich-ln")
DEFAULT_LAYERS: tuple[int, ...] = (16, 64, 256)

OUTCOMES: tuple[str, ...] = ("stable", "stuck", "diverges")
BELOW_FREQUENCIES = 0.05
"""Nats that a stable run ends below what a model can reach that looks at no other character."""
RISE = 0.2
"""Nats of rise over the best stretch of training that count as divergence: the means that are compared scatter by 0.04
with 256 characters a step."""
WINDOW = 10
"""Steps of a stretch."""


@dataclass(frozen=True)
class Search:
    """One search: every rate of a grid, then bisection between the last stable and the first unstable one.

    Attributes:
        base: the network and how it is trained; its rate says nothing.
        lrs: the grid, ascending.
        refinements: bisections in the logarithm of the rate.
    """

    base: DepthRun
    lrs: tuple[float, ...] = DEFAULT_LRS
    refinements: int = 2

    def __post_init__(self) -> None:
        if len(self.lrs) < 2 or list(self.lrs) != sorted(set(self.lrs)):
            raise ValueError(f"lr needs two different rates or more, got {', '.join(f'{lr:g}' for lr in self.lrs)}")
        for lr in self.lrs:
            self.at(lr)
        if self.refinements < 0:
            raise ValueError(f"refinements must be >= 0, got {self.refinements}")

    @property
    def folder_name(self) -> str:
        """Tells the searches of one experiment apart."""
        base = self.base
        return f"{base.scheme.replace(':', '-')}-{base.depth_name}-warmup{base.warmup_steps}-seed{base.seed}"

    @property
    def num_steps(self) -> int:
        """Steps of all tries, at most."""
        return (len(self.lrs) + self.refinements) * self.base.num_steps

    def at(self, lr: float) -> DepthRun:
        """The run at a rate."""
        return replace(self.base, lr=lr)

    def next_lr(self, outcomes: dict[float, str]) -> float | None:
        """The rate to try after those that were; ``None`` when the search is over.

        Examples:
            >>> search = Search(DepthRun("keel", 0, 4), lrs=(0.001, 0.1), refinements=1)
            >>> search.next_lr({}), search.next_lr({0.001: "stable"})
            (0.001, 0.1)
            >>> round(search.next_lr({0.001: "stable", 0.1: "diverges"}), 6)
            0.01
        """
        for lr in self.lrs:
            if lr not in outcomes:
                return lr
        edge = find_edge(outcomes)
        if len(outcomes) >= len(self.lrs) + self.refinements or edge.highest is None or edge.lowest_above is None:
            return None
        return math.sqrt(edge.highest * edge.lowest_above)


@dataclass(frozen=True)
class Edge:
    """Between which two rates stability ends.

    Attributes:
        highest: the largest rate up to which no rate above the lowest stable one failed; ``None`` if none is stable.
        lowest_above: the smallest one above it that failed; ``None`` if none failed.
    """

    highest: float | None
    lowest_above: float | None


def find_edge(outcomes: dict[float, str]) -> Edge:
    """Where stability ends, going up from the lowest stable rate; a rate that is stable again further up is luck.

    Rates below the lowest stable one are too small to get anywhere in the budget, and say nothing.

    Examples:
        >>> find_edge({1e-4: "stuck", 1e-3: "stable", 1e-2: "stable", 1e-1: "diverges", 1.0: "stable"})
        Edge(highest=0.01, lowest_above=0.1)
    """
    highest: float | None = None
    for lr in sorted(outcomes):
        if outcomes[lr] == "stable":
            highest = lr
        elif highest is not None:
            return Edge(highest, lr)
    return Edge(highest, None)


def judge(result: dict[str, Any]) -> str:
    """The outcome of a run.

    ``diverges``: a loss is not finite, or the mean of the last :data:`WINDOW` losses is :data:`RISE` above that of the
    best earlier stretch, or above the first loss. ``stuck``: the held-out loss is not :data:`BELOW_FREQUENCIES`
    below ``frequency_loss``, the least that a model can reach which ignores what came before: there deep post-norm
    networks end at a rate that is too high, and every network at one that is too low. ``stable``: otherwise.

    Args:
        result: ``losses``, ``nonfinite_step``, ``held_out_loss`` and ``frequency_loss`` of a run.

    Examples:
        >>> result = {"losses": [4.6, 3.1, 2.8], "nonfinite_step": None, "frequency_loss": 3.1}
        >>> judge(result | {"held_out_loss": 2.8}), judge(result | {"held_out_loss": 3.09})
        ('stable', 'stuck')
    """
    losses = result["losses"]
    if result["nonfinite_step"] is not None or not math.isfinite(result["held_out_loss"]):
        return "diverges"
    means = _stretches(losses)
    if means[-1] > min(means) + RISE or means[-1] > losses[0]:
        return "diverges"
    return "stable" if result["held_out_loss"] < result["frequency_loss"] - BELOW_FREQUENCIES else "stuck"


def _stretches(losses: Sequence[float]) -> list[float]:
    """Means over every :data:`WINDOW` losses in a row; the last is that of the last losses."""
    size = min(WINDOW, len(losses))
    return [sum(losses[first : first + size]) / size for first in range(len(losses) - size + 1)]
