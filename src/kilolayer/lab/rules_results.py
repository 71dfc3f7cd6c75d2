"""What came out of ``kilolayer lab rules``: losses, gradients by depth, and who beats whom on which seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kilolayer.lab.depth_run import DepthRun, split_scheme, to_record
from kilolayer.lab.experiment import finished_runs
from kilolayer.lab.rules_experiment import RulesExperiment
from kilolayer.report import format_number
from kilolayer.schemes import Depth, get_scheme


@dataclass(frozen=True, eq=False)
class RulesResult:
    """One finished run."""

    run: DepthRun
    numbers: dict[str, Any]

    @property
    def held_out_loss(self) -> float:
        """In nats per character; infinite where training ended at a loss that is not finite."""
        loss = float(self.numbers["held_out_loss"])
        failed = self.numbers["nonfinite_step"] is not None or not math.isfinite(loss)
        return math.inf if failed else loss

    @property
    def learned_context(self) -> bool:
        """Whether it does better than any model that looks at no other character can."""
        return self.held_out_loss < self.numbers["frequency_loss"]

    @property
    def grads_at_start(self) -> np.ndarray:
        """Gradient norm of every layer at step 0. Shape: ``(num_layers,)``."""
        return by_layer(self.numbers["grad_norm_by_branch_at_start"], self.run.decoder_layers)

    @property
    def grads(self) -> np.ndarray:
        """Gradient norm of every layer, mean over the last steps. Shape: ``(num_layers,)``."""
        return by_layer(self.numbers["grad_norm_by_branch"], self.run.decoder_layers)


def by_layer(norms: Sequence[float], num_layers: int) -> np.ndarray:
    """Norms of branches, attention and feed-forward in turn, as norms of layers.

    The two kinds differ in size whatever the scheme, so that depth is compared layer by layer.

    Examples:
        >>> by_layer([3.0, 4.0, 6.0, 8.0], 2).tolist()
        [5.0, 10.0]
    """
    return np.linalg.norm(np.asarray(norms, dtype=np.float64).reshape(num_layers, -1), axis=1)


def spread(norms: np.ndarray) -> float:
    """Largest over smallest; infinite where a layer gets none.

    Examples:
        >>> spread(np.array([0.5, 2.0, 1.0])), spread(np.array([0.0, 1.0]))
        (4.0, inf)
    """
    low, high = float(norms.min()), float(norms.max())
    return high / low if low > 0 else math.nan if math.isnan(low) else math.inf


@dataclass(frozen=True, eq=False)
class Standing:
    """A scheme's place among those compared.

    Attributes:
        place: from 1; equal means share one.
        scheme: with its rule.
        results: its runs, by seed.
        mean: held-out loss, mean over seeds.
        behind: held-out loss minus that of the first scheme on the same seed, for every seed that both finished.
    """

    place: int
    scheme: str
    results: tuple[RulesResult, ...]
    mean: float
    behind: tuple[float, ...]

    @property
    def held_out(self) -> list[float]:
        """Held-out loss by seed."""
        return [result.held_out_loss for result in self.results]

    @property
    def is_level(self) -> bool:
        """Whether it is not behind the first on every seed; one seed tells nothing but an exact tie."""
        return any(difference <= 0 for difference in self.behind)


def load_results(experiment: RulesExperiment, folder: Path) -> list[RulesResult]:
    """Every finished run, in the experiment's order."""
    return [RulesResult(run, numbers) for run, numbers in finished_runs(experiment, folder).items()]


def rank(results: Sequence[RulesResult]) -> list[Standing]:
    """The schemes by mean held-out loss, the lowest first; in the order given where the means are equal.

    Of an experiment that was stopped, only the seeds count that every scheme finished, if there is one: means over
    different seeds are not comparable.
    """
    groups: dict[str, list[RulesResult]] = {}
    for result in _on_common_seeds(results):
        groups.setdefault(result.run.scheme, []).append(result)
    means = {scheme: sum(one.held_out_loss for one in group) / len(group) for scheme, group in groups.items()}
    order = sorted(groups, key=lambda scheme: means[scheme])
    best = {one.run.seed: one.held_out_loss for one in groups[order[0]]}
    return [
        Standing(
            place=1 + sum(means[other] < means[scheme] for other in order),
            scheme=scheme,
            results=tuple(sorted(groups[scheme], key=lambda one: one.run.seed)),
            mean=means[scheme],
            behind=tuple(
                _difference(one.held_out_loss, best[one.run.seed]) for one in groups[scheme] if one.run.seed in best
            ),
        )
        for scheme in order
    ]


def _on_common_seeds(results: Sequence[RulesResult]) -> Sequence[RulesResult]:
    seeds: dict[str, set[int]] = {}
    for result in results:
        seeds.setdefault(result.run.scheme, set()).add(result.run.seed)
    common = set.intersection(*seeds.values())
    return [result for result in results if result.run.seed in common] or results


def _difference(loss: float, best: float) -> float:
    return 0.0 if loss == best else loss - best


def scales_of(run: DepthRun) -> tuple[float | None, float | None]:
    """Skip scale and init gain of the first branch; ``None`` for a scheme that takes them from a profiling pass."""
    scheme = get_scheme(*split_scheme(run.scheme))
    if scheme.needs_profile:
        return None, None
    scales = scheme.at(Depth(decoder_layers=run.decoder_layers), 0, "decoder")
    return scales.skip_scale, scales.init_gain


def sentence(standings: Sequence[Standing]) -> str:
    """The comparison in one sentence or two."""
    first, last = standings[0], standings[-1]
    run, num_seeds = first.results[0].run, max(len(one.results) for one in standings)
    seeds = f"{num_seeds} seeds" if num_seeds > 1 else "one seed"
    what = f"{run.decoder_layers} layers, {run.num_steps} steps, {seeds}"
    if math.isinf(first.mean):
        return f"No scheme ends at a finite loss on every seed ({what})."
    said = f"{first.scheme} ends lowest ({what}): held-out loss {first.mean:.3f}{_stuck(first)}."
    level = [one.scheme for one in standings[1:] if one.is_level]
    if level:
        said += f" Not behind it on every seed: {', '.join(level)}."
    if len(standings) > 1 and last.scheme not in level:
        said += f" Last is {last.scheme}{_fate(last)}."
    return said if num_seeds > 1 else f"{said} One seed does not tell an order from chance."


def _fate(standing: Standing) -> str:
    """Where a scheme ended, and its gradient there."""
    if math.isinf(standing.mean):
        return ", whose loss is not finite"
    grads = standing.results[0].grads
    share = format_number(grads[0] / grads[-1]) if grads[-1] else "nothing"
    return f" at {standing.mean:.3f}{_stuck(standing)}; its bottom layer's gradient ends at {share} of its top layer's"


def _stuck(standing: Standing) -> str:
    learned = any(one.learned_context for one in standing.results)
    return "" if learned else ", no better than character frequencies"


def to_json_record(result: RulesResult) -> dict[str, Any]:
    """One run as ``--json`` prints it."""
    by_depth = {"grad_norm_by_layer": result.grads, "grad_norm_by_layer_at_start": result.grads_at_start}
    spreads = {"grad_spread": spread(result.grads), "grad_spread_at_start": spread(result.grads_at_start)}
    return to_record(result.run, result.numbers | by_depth | spreads)
