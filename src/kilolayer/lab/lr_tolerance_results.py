"""What came out of ``kilolayer lab lr-tolerance``: the edge of every search, and the comparison with KEEL's table."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kilolayer.lab.depth_run import to_record
from kilolayer.lab.experiment import finished_runs
from kilolayer.lab.lr_tolerance import Edge, Search, find_edge
from kilolayer.lab.lr_tolerance_experiment import ToleranceExperiment

KEEL_PAPER: dict[str, dict[int, float]] = {
    "post-ln": {64: 3.0e-4, 512: 2.8e-4},
    "deepnorm:deepnet": {64: 3.5e-4, 512: 3.5e-4},
    "pre-ln": {64: 7.65e-3, 512: 4.67e-3},
    "keel": {64: 1.01e-2, 512: 6.31e-3},
}
"""Largest stable learning rate by layers, decoder-only models (arXiv:2601.19895); in ascending order."""


@dataclass(frozen=True, eq=False)
class SearchResult:
    """One finished search."""

    search: Search
    tries: list[dict[str, Any]]

    @property
    def edge(self) -> Edge:
        """Between which rates stability ends."""
        return find_edge({one["lr"]: one["outcome"] for one in self.tries})

    @property
    def largest_lr(self) -> float:
        """The largest stable rate, 0 if none is."""
        return self.edge.highest or 0.0

    @property
    def is_open(self) -> bool:
        """Whether the largest rate that was tried is stable, so that the edge lies further up."""
        return self.edge.highest is not None and self.edge.lowest_above is None

    def at(self, lr: float) -> dict[str, Any]:
        """The try at a rate of the grid."""
        return next(one for one in self.tries if one["lr"] == lr)


@dataclass(frozen=True)
class Setting:
    """What decides a comparison of schemes."""

    layers: int
    warmup_steps: int

    @property
    def text(self) -> str:
        """Such as ``64 layers, warm-up 10``."""
        return f"{self.layers} layers, {f'warm-up {self.warmup_steps}' if self.warmup_steps else 'no warm-up'}"


Groups = dict[Setting, dict[str, list[SearchResult]]]
"""The seeds of every scheme in every setting."""


def load_results(experiment: ToleranceExperiment, folder: Path) -> list[SearchResult]:
    """Every finished search, in the experiment's order."""
    return [SearchResult(run, found["tries"]) for run, found in finished_runs(experiment, folder).items()]


def group(results: Sequence[SearchResult]) -> Groups:
    """Results by setting and scheme, settings in ascending order."""
    groups: Groups = {}
    for result in sorted(results, key=lambda one: (one.search.base.decoder_layers, one.search.base.warmup_steps)):
        base = result.search.base
        schemes = groups.setdefault(Setting(base.decoder_layers, base.warmup_steps), {})
        schemes.setdefault(base.scheme, []).append(result)
    return groups


def compare(low: Sequence[SearchResult], high: Sequence[SearchResult]) -> int | None:
    """Whether the second scheme stands larger rates than the first: 1, -1 if the first does, 0 if both the same.

    The medians over seeds are compared; ``None`` if both reach the end of the grid, or if neither trains at all.
    """
    first, second = (statistics.median(one.largest_lr for one in group) for group in (low, high))
    if first == second:
        undecided = first == 0 or any(one.is_open for one in (*low, *high))
        return None if undecided else 0
    return 1 if second > first else -1


def sentence(groups: Groups) -> str:
    """The comparison with KEEL's table, and who trains at no rate."""
    claims = [text for low, high in itertools.pairwise(KEEL_PAPER) if (text := _claim(groups, low, high))]
    if not claims and all(not one.largest_lr for one in _results_of(groups)):
        return "Nothing trains at any of these rates."
    said = f"The KEEL paper's order, here: {'; '.join(claims)}." if claims else _largest(groups)
    failures = [text for scheme in schemes_of(groups) if (text := _failures(groups, scheme))]
    return said + (f" {'; '.join(failures)}." if failures else "")


def schemes_of(groups: Groups) -> list[str]:
    """Every scheme, in the order run."""
    return list(dict.fromkeys(scheme for schemes in groups.values() for scheme in schemes))


def _failures(groups: Groups, scheme: str) -> str:
    """Where a scheme trains at no rate on any seed."""
    tried = [setting for setting, schemes in groups.items() if scheme in schemes]
    failed = [one for one in tried if all(result.edge.highest is None for result in groups[one][scheme])]
    if not failed:
        return ""
    everywhere = len(failed) == len(tried) > 1
    where = "in any setting" if everywhere else " and ".join(f"at {one.text}" for one in failed)
    return f"{scheme} trains at no rate {where}"


def _claim(groups: Groups, low: str, high: str) -> str:
    """In how many settings the paper's order of two schemes is seen; empty where they were not both run."""
    verdicts = [compare(schemes[low], schemes[high]) for schemes in groups.values() if {low, high} <= set(schemes)]
    if not verdicts:
        return ""
    undecided = verdicts.count(None)
    open_ones = f" ({undecided} undecided)" if undecided else ""
    name = f"setting{'s' if len(verdicts) > 1 else ''}"
    return f"{low} stands less than {high} in {verdicts.count(1)} of {len(verdicts)} {name}{open_ones}"


def _results_of(groups: Groups) -> list[SearchResult]:
    return [one for schemes in groups.values() for those in schemes.values() for one in those]


def _largest(groups: Groups) -> str:
    best = max(_results_of(groups), key=lambda one: one.largest_lr)
    base = best.search.base
    bound = "at least " if best.is_open else ""
    return f"The largest stable rate is {bound}{best.largest_lr:.2g}: {base.scheme} at {base.decoder_layers} layers."


def to_json_search(result: SearchResult) -> dict[str, Any]:
    """One search as ``--json`` prints it."""
    base, edge = result.search.base, result.edge
    return {
        "scheme": base.scheme,
        "decoder_layers": base.decoder_layers,
        "warmup_steps": base.warmup_steps,
        "seed": base.seed,
        "largest_stable_lr": edge.highest,
        "smallest_failing_lr_above": edge.lowest_above,
        "outcomes": [
            {"lr": one["lr"], "outcome": one["outcome"], "held_out_loss": one["held_out_loss"]}
            for one in sorted(result.tries, key=lambda one: one["lr"])
        ],
    }


def to_json_runs(result: SearchResult) -> list[dict[str, Any]]:
    """Every try of a search as a run."""
    return [to_record(result.search.at(one["lr"]), one) for one in result.tries]


def median_loss(results: Sequence[SearchResult], lr: float) -> float:
    """Held-out loss at a rate of the grid, median over seeds; infinite where it is not finite."""
    losses = [one.at(lr)["held_out_loss"] for one in results]
    return statistics.median(loss if math.isfinite(loss) else math.inf for loss in losses)
