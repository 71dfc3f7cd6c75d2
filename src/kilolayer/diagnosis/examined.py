"""What an examination found, in the terms of the rules: tables of facts, outcome, chains of layers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cached_property

import numpy as np

from kilolayer.diagnosis.chains import Chain, Row, chains_of
from kilolayer.recording import Recording

LEARNS = 0.5
"""Final loss over what is to beat (its start, or the best answer that ignores the input) up to which a run learns."""

STRUGGLES = 0.85
"""The same beyond which it hardly learns."""

STUCK = 0.95
"""The same beyond which it has learned nothing to speak of."""

DIVERGED = 1.2
"""Final loss over both its start and the answer that ignores the input from which on a run went up, not down."""

DIVERGED_NOISY = 2.0
"""The same where single losses tell nothing."""

ALREADY_TRAINED = 0.7
"""Loss at step 0 over the answer that ignores the input below which a model was trained before."""

REGRESSION = ("mse", "smooth-l1", "huber")
"""Losses on real numbers."""

FEW_STEPS = 50
SEEN_RATE = 1e-3
"""Update ratio below which weights hardly move: a learning rate on its way up has then not been tried yet."""

FEW_SAMPLES = 8
"""Samples of a batch below which its targets say little about the spread of all."""

OTHER_LOSS = 0.25
"""Difference between the set-up's loss and what its own loop returns at first, in parts of the larger, from which on
they are two losses."""

NOISY = 0.5
"""Median change of the loss from one step to the next, over its median, from which on a single value tells nothing."""

STILL_FALLING = 0.02
"""Fall of the loss over the last two fifths of a run, in parts of its start, that goes on."""


class Examined:
    """The facts of an examination."""

    def __init__(self, recording: Recording):
        self.recording = recording
        self.facts: Row = recording.facts["examination"]

    # ------------------------------------------------------------------ tables
    @cached_property
    def parameters(self) -> list[Row]:
        """Rows of the model's parameters."""
        return list(self.facts["parameters"])

    @cached_property
    def step0(self) -> Row:
        """The tables of step 0."""
        return dict(self.facts["step0"])

    @cached_property
    def end(self) -> Row | None:
        """The tables at the end of the run; ``None`` without one."""
        return self.facts.get("end")

    @cached_property
    def run(self) -> Row | None:
        """The run; ``None`` without one."""
        return self.facts.get("run")

    @cached_property
    def layers(self) -> list[Row]:
        """Products with weights in order, the first call of each; recurrent weights apart."""
        return [row for row in self.step0["layers"] if row["call"] == 0]

    @cached_property
    def branches(self) -> list[Row]:
        """Residual sums, in order."""
        return list(self.step0["branches"])

    @cached_property
    def structure(self) -> Row:
        """Chains of residual sums, norms behind them, schemes."""
        return dict(self.facts["structure"])

    @cached_property
    def fault(self) -> Row | None:
        """The operation that made the first value that is not finite."""
        return self.facts.get("fault")

    @cached_property
    def trained(self) -> list[Row]:
        """Rows of the parameters that ask for gradients."""
        return [row for row in self.parameters if row["is_trainable"]]

    @cached_property
    def input(self) -> Row | None:
        """The first real tensor of the inputs."""
        return next((row for row in self.facts["inputs"] if row["is_real"] and row.get("rms") is not None), None)

    @cached_property
    def is_half(self) -> bool:
        """Whether most trained entries are of half precision."""
        half = sum(row["numel"] for row in self.trained if row["dtype"] in ("float16", "bfloat16"))
        return half > 0.5 * sum(row["numel"] for row in self.trained)

    # ------------------------------------------------------------------ the loss
    @cached_property
    def main_loss(self) -> Row | None:
        """The loss operation, where there is one and it is the whole loss."""
        losses = self.step0["losses"]
        return losses[0] if len(losses) == 1 else None

    @cached_property
    def baseline(self) -> float | None:
        """The loss of the best answer that does not look at the input; ``None`` where a perfect one needs no look."""
        row = self.main_loss
        known = None if row is None else row["baseline"]
        value = self.facts["loss"]["constant"] if known is None else known * self._loss_scale
        if value is None or self.returns_another_loss:
            return None
        if row is None or not self.facts.get("has_fresh_batches"):
            return value or None
        return self._baseline_of_more(value, row)

    def _baseline_of_more(self, value: float, row: Row) -> float | None:
        """:attr:`baseline` of all data, going by one batch of them, which fits a constant better than all do.

        Of n labels of C classes the entropy is low by (C - 1) / (2 n), of n targets the variance by a factor 1 - 1 / n.
        """
        if row["kind"] == "nll":
            missing = (row["num_classes"] - 1) / (2 * max(row.get("num_targets") or 1, 1)) * self._loss_scale
            return min(value + missing, max(value, (row["chance"] or math.inf) * self._loss_scale)) or None
        count = row["shape"][0] if row["shape"] else 1
        return None if count < FEW_SAMPLES else value * count / (count - 1) or None

    @cached_property
    def chance(self) -> float | None:
        """The loss of even odds for every class, where there are classes; else :attr:`baseline`."""
        known = None if self.main_loss is None else self.main_loss["chance"]
        return self.baseline if not known else known * self._loss_scale

    @cached_property
    def _loss_scale(self) -> float:
        """The loss over the mean of its operation: sums, weights and factors make it another number."""
        own = None if self.main_loss is None else self.main_loss.get("own")
        scale = self.initial_loss / own if own else 1.0
        return scale if math.isfinite(scale) and scale > 0 else 1.0

    @property
    def run_steps(self) -> int:
        """Steps of the run; 0 without one."""
        return 0 if self.run is None else int(self.run["num_steps"])

    @property
    def nonfinite_step(self) -> int | None:
        """The first step of the run whose loss was not finite."""
        bad = np.flatnonzero(~np.isfinite(self.losses))
        return int(bad[0]) if len(bad) else None

    @cached_property
    def losses(self) -> np.ndarray:
        """Losses of the run; NaN for what was not finite."""
        run = self.run
        return np.array([], float) if run is None else _floats(run["losses"])

    @cached_property
    def initial_loss(self) -> float:
        """Loss at step 0."""
        value = self.facts["loss"]["value"]
        return math.nan if value is None else float(value)

    @cached_property
    def is_noisy(self) -> bool:
        """Whether losses of fresh batches go up and down by as much as half their size from one step to the next."""
        losses = self.losses
        if not self.facts.get("has_fresh_batches") or len(losses) < 10 or not np.isfinite(losses).all():
            return False
        changes = np.diff(losses)
        turns = float(np.mean(changes[1:] * changes[:-1] < 0))
        return bool(turns > 1 / 3 and np.median(np.abs(changes)) > NOISY * abs(np.median(losses)))

    @cached_property
    def returns_another_loss(self) -> bool:
        """Whether the user's own loop returns another loss than the set-up's, such as a sum of several."""
        if not self.facts.get("has_own_loop") or not len(self.losses):
            return False
        first, own = float(self.losses[0]), self.initial_loss
        return abs(first - own) > OTHER_LOSS * max(abs(first), abs(own))  # false where one is not finite

    @cached_property
    def start_loss(self) -> float:
        """What the run began at: the loss at step 0, or the median of the first fifth where single ones say little."""
        if self.is_noisy:
            return float(np.median(self.losses[: max(5, len(self.losses) // 5)]))
        return float(self.losses[0]) if self.returns_another_loss else self.initial_loss

    @cached_property
    def final_loss(self) -> float:
        """Median of the last tenth of the losses, or fifth where single ones say little; at least five."""
        return self._final_of(self.losses)

    def _final_of(self, losses: np.ndarray) -> float:
        return final_of(losses, parts=5 if self.is_noisy else 10)

    @cached_property
    def progress(self) -> float:
        """Final loss over the least of its start and the answer that ignores the input."""
        return self.progress_of(self.losses)

    def progress_of(self, losses: np.ndarray) -> float:
        """:attr:`progress` of any run from the same start."""
        reference = min(self.start_loss, math.inf if self.baseline is None else self.baseline)
        final = self._final_of(losses)
        if not math.isfinite(reference) or not math.isfinite(final):
            return math.nan
        if reference > 0:
            return final / reference
        # A loss that goes below 0 has no scale of its own: how far it fell beside where it was.
        return 1 - (reference - final) / max(abs(reference), 1e-12)

    @cached_property
    def outcome(self) -> str | None:
        """``non-finite``, ``diverged``, ``stuck``, ``slow``, ``learns``; ``None`` without a run.

        ``unfinished``: a short run whose loss was still falling when it ended, or one that ended early in a warm-up,
        tells nothing.
        """
        if self.run is None or not len(self.losses):
            return None
        if self.run["nonfinite_step"] is not None or not np.isfinite(self.losses).all():
            return "non-finite"
        if self.baseline is not None and self.start_loss < ALREADY_TRAINED * self.baseline:
            return "learns" if self.final_loss < 1.05 * self.start_loss else "diverged"
        chance = -math.inf if self.returns_another_loss else self.chance or -math.inf
        limit = DIVERGED_NOISY if self.is_noisy else DIVERGED
        if self.final_loss > limit * max(self.start_loss, chance):
            return "diverged"
        if self.progress <= LEARNS:
            return "learns"
        if (self.is_short and self.is_falling) or self.is_warming_up:
            return "unfinished"
        return "stuck" if self.progress > STUCK and not self.is_falling else "slow"

    @property
    def is_short(self) -> bool:
        """Whether the run ended before it could be expected to show anything."""
        return self.run is not None and (self.run["is_cut_short"] or self.run["num_steps"] < FEW_STEPS)

    @property
    def is_falling(self) -> bool:
        """Whether the loss was lower at the end of the run than in its middle, and lowest there."""
        parts = np.array_split(self.losses, 5)
        if len(self.losses) < 10 or not np.isfinite(self.losses).all():
            return False
        middles = [float(np.median(part)) for part in parts]
        return middles[2] - middles[4] > STILL_FALLING * abs(middles[0]) and middles[4] <= min(middles)

    @property
    def is_on_course(self) -> bool:
        """Whether at the pace of the run's second half as many steps again would bring it to where it has learned."""
        if not self.is_falling:
            return False
        parts = np.array_split(self.losses, 5)
        fall = float(np.median(parts[2]) - np.median(parts[4]))  # in two of five parts
        return self.progress_of(self.losses - 2.5 * fall) <= LEARNS

    @cached_property
    def is_warming_up(self) -> bool:
        """Whether the learning rate was still rising when the run ended, and the weights had hardly moved by then."""
        steps, rates = self.recording.series("run", "run", "lr")
        count = self.run["num_steps"] if self.run is not None else 0
        if len(rates) < 2 or steps[-1] < count - 1 or not rates[-1] > rates[-2]:
            return False
        names = list(self.update_ratios)
        last = max((int(step) for step in self.recording.steps("update", "update_ratio")), default=0)
        ratios = self.recording.curve("update", "update_ratio", names, last)
        return bool(names) and float(np.nan_to_num(ratios).max()) < SEEN_RATE

    @property
    def fails(self) -> bool:
        """Whether the run did not learn; false without a run."""
        return self.outcome in ("non-finite", "diverged", "stuck", "slow")

    @property
    def struggles(self) -> bool:
        """Whether it learned next to nothing, or worse."""
        return self.fails_badly or (self.outcome == "slow" and self.progress > STRUGGLES)

    @property
    def fails_badly(self) -> bool:
        """Whether it learned nothing, or worse."""
        return self.outcome in ("non-finite", "diverged", "stuck")

    # ------------------------------------------------------------------ along the depth
    @cached_property
    def chains(self) -> list[Chain]:
        """Layers in a row without a sum between them, the longest chain first."""
        return chains_of(self.step0)

    @cached_property
    def chain(self) -> Chain | None:
        """The longest chain, where it has at least three layers."""
        return self.chains[0] if self.chains and len(self.chains[0]) >= 3 else None

    def branches_of(self, chain: int) -> list[Row]:
        """The residual sums of one stream."""
        return [self.branches[index] for index in self.structure["chains"][chain]]

    # ------------------------------------------------------------------ updates
    @cached_property
    def update_ratios(self) -> dict[str, float]:
        """``||update|| / ||weight||`` at step 0 of each trained weight matrix that is not 0."""
        names = [row["name"] for row in self.trained if len(row["shape"]) >= 2 and row["rms"]]
        values = self.recording.curve("update", "update_ratio", names, 0)
        return {name: float(value) for name, value in zip(names, values, strict=True) if math.isfinite(value)}

    @cached_property
    def update_ratio(self) -> float | None:
        """Their median."""
        values = list(self.update_ratios.values())
        return float(np.median(values)) if values else None

    @cached_property
    def lr(self) -> float | None:
        """The first group's learning rate."""
        groups = self.facts["optimizer"].get("groups") or [{}]
        value = groups[0].get("lr")
        return None if value is None else float(value)

    @cached_property
    def other_rates(self) -> list[Row]:
        """Runs at other learning rates."""
        return list(self.facts.get("other_rates", []))

    def better_rate(self, *, lower: bool) -> tuple[float, float] | None:
        """Factor and progress of the best other rate that learns much more in as many steps; ``None`` if none does."""
        found = []
        for one in self.other_rates:
            losses = _floats(one["losses"])
            if (one["factor"] < 1) != lower or one["nonfinite_step"] is not None or not len(losses):
                continue
            own = self.progress_of(self.losses[: len(losses)])
            progress = self.progress_of(losses)
            if math.isfinite(progress) and (not math.isfinite(own) or progress < min(0.9, own - 0.1)):
                found.append((one["factor"], progress))
        return min(found, key=lambda pair: pair[1]) if found else None


def final_of(losses: np.ndarray, *, parts: int = 10) -> float:
    """Median of the last of so many parts of losses, at least five of them; NaN where one is not finite."""
    if not len(losses):
        return math.nan
    tail = losses[-max(5, len(losses) // parts) :]
    return float(np.median(tail)) if np.isfinite(tail).all() else math.nan


def _floats(values: Iterable[float | None]) -> np.ndarray:
    return np.array([math.nan if value is None else value for value in values], float)
