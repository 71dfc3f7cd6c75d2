"""Spike triage: at which step the gradient norm jumped, and whose gradient jumped first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kilolayer.recording import Recording, Site

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


@dataclass(frozen=True)
class Rise:
    """A weight matrix whose gradient norm jumped on the way to a spike.

    ``factor`` is the gradient norm at the spike over the mean of the layer's window; infinite where it is not
    finite.
    """

    site: str
    step: int
    factor: float


@dataclass(frozen=True)
class Spike:
    """A step whose gradient norm lies beyond ``mean + 6 sd`` of the last 128 steps, or is not finite.

    ``rises`` are the weight matrices that jumped with it: those that did so first come first; of those that did so
    at the same step the largest, and of those that are not finite the one nearest to the output, where the backward
    pass met it first. ``nonfinite_activation`` is the first tensor of the forward pass that was not finite at this
    step, where that was sampled.
    """

    step: int
    grad_norm: float
    mean: float
    sd: float
    rises: tuple[Rise, ...]
    nonfinite_activation: str | None = None

    @property
    def first_site(self) -> str | None:
        """Where it began: the first activation that is not finite, else the weight matrix whose gradient jumped
        first; ``None`` where no single one left its own range."""
        if self.nonfinite_activation is not None:
            return self.nonfinite_activation
        return self.rises[0].site if self.rises else None

    def __str__(self) -> str:
        usual = f"mean {self.mean:.3g} of the steps before"
        if np.isfinite(self.grad_norm):
            distance = (self.grad_norm - self.mean) / self.sd
            text = f"step {self.step}: gradient norm {self.grad_norm:.3g}, {distance:.0f} sd above the {usual}"
        else:
            text = f"step {self.step}: gradient norm not finite"
        if self.nonfinite_activation is not None:
            return f"{text}; the forward pass is not finite from {self.nonfinite_activation} on"
        if not self.rises:
            return f"{text}; no weight matrix stands out"
        first = self.rises[0]
        more = f", {len(self.rises) - 1} more with it" if len(self.rises) > 1 else ""
        return f"{text}; {first.site} rose first (step {first.step}, {first.factor:.3g}x by then){more}"


def find_spikes(recording: Recording, *, window: int = WINDOW, num_sds: float = NUM_SDS) -> list[Spike]:
    """The spikes of a run's gradient norm, each with the layers that rose first.

    A step is a spike where ``norm > mean + num_sds * sd``, mean and standard deviation over the finite ones of the
    ``window`` steps before it (at least 16), or where the norm is not finite. Spikes at consecutive steps are one.
    A layer's own gradient norm is judged alike over the 16 steps up to the spike, against the steps before those.

    Where ``unclipped_grad_norm`` was logged, the norms are those before clipping: clipping divides all gradients by
    one number.

    Raises:
        ValueError: ``window`` < 16, ``num_sds`` <= 0, or a recording without gradient norms.

    Example:
        >>> from kilolayer.recording import RecordingWriter
        >>> writer = RecordingWriter()
        >>> for step in range(40):
        ...     writer.add(step, "run", "run", "grad_norm", 50.0 if step == 30 else 1.0 + 0.1 * (step % 3))
        >>> [spike.step for spike in find_spikes(writer.close())]
        [30]
    """
    if window < MIN_HISTORY:
        raise ValueError(f"window must be >= {MIN_HISTORY}, got {window}")
    if not num_sds > 0:
        raise ValueError(f"num_sds must be > 0, got {num_sds}")
    triage = _Triage(recording, window, num_sds)
    return [triage.examine(at) for at in triage.find()]


def trace_spike(recording: Recording, step: int, *, window: int = WINDOW, num_sds: float = NUM_SDS) -> Spike:
    """What rose first on the way to one step, whether or not its gradient norm is a spike.

    For a spike that something else showed, such as the loss; see :func:`find_spikes`.

    Raises:
        ValueError: a recording without the gradient norm of that step.
    """
    triage = _Triage(recording, window, num_sds)
    at = np.flatnonzero(triage.steps == step)
    if not len(at):
        raise ValueError(f"this recording has no gradient norm of step {step}")
    return triage.examine(int(at[0]))


class _Triage:
    """A recording's gradient norms as arrays over steps, before clipping where that is known."""

    def __init__(self, recording: Recording, window: int, num_sds: float):
        self.recording, self.window, self.num_sds = recording, window, num_sds
        self.steps, norms = recording.series("run", "run", "grad_norm")
        if not len(self.steps):
            raise ValueError("this recording has no gradient norm per step; record one with kilolayer.Monitor")
        factors = _clip_factors(recording, self.steps, norms)
        self.norms = norms * factors
        self.sites = sorted((site for site in recording.sites if site.kind == "weight"), key=lambda site: site.order)
        self.layers = _layer_norms(recording, self.sites, self.steps) * factors[:, None]

    def find(self) -> list[int]:
        """Places of the steps at which a spike begins."""
        found = []
        was_spike = False
        for at, norm in enumerate(self.norms):
            mean, sd = _usual(self.norms[max(0, at - self.window) : at, None])
            is_spike = not np.isfinite(norm) or norm > mean[0] + self.num_sds * sd[0]
            if is_spike and not was_spike:
                found.append(at)
            was_spike = is_spike
        return found

    def examine(self, at: int) -> Spike:
        """The spike at one place."""
        mean, sd = _usual(self.norms[max(0, at - self.window) : at, None])
        return Spike(
            step=int(self.steps[at]),
            grad_norm=float(self.norms[at]),
            mean=float(mean[0]),
            sd=float(sd[0]),
            rises=tuple(self._rises(at)),
            nonfinite_activation=None if np.isfinite(self.norms[at]) else self._nonfinite_activation(at),
        )

    def _rises(self, at: int) -> list[Rise]:
        start = min(at, max(at - LOOKBACK, MIN_HISTORY))
        mean, sd = _usual(self.layers[max(0, start - self.window) : start])
        recent = self.layers[start : at + 1]
        has_jumped = recent > mean + self.num_sds * sd
        if not np.isfinite(self.norms[at]):
            # A layer without a row reads NaN as well: it had no finite one before either.
            known = np.isfinite(self.layers[max(0, start - self.window) : at]).any(0) if at else True
            has_jumped[-1] |= ~np.isfinite(recent[-1]) & known
        rises = []
        for column in np.flatnonzero(has_jumped[-1]):
            calm = np.flatnonzero(~has_jumped[:, column])
            first = start + (int(calm[-1]) + 1 if len(calm) else 0)
            factor = recent[-1, column] / mean[column] if np.isfinite(recent[-1, column]) else np.inf
            rises.append((int(self.steps[first]), float(factor), int(column)))
        rises.sort(key=lambda rise: (rise[0], -rise[1], -rise[2]))
        return [Rise(self.sites[column].name, step, factor) for step, factor, column in rises]

    def _nonfinite_activation(self, at: int) -> str | None:
        tensors = sorted(
            (s for s in self.recording.sites if s.kind not in ("weight", "parameter")), key=lambda s: s.order
        )
        steps, values = self.recording.matrix("activation", "rms", tensors)
        row = np.flatnonzero(steps == self.steps[at])
        if not len(row):
            return None
        ran = np.isfinite(values).any(0)
        bad = np.flatnonzero(~np.isfinite(values[row[0]]) & ran)
        return tensors[bad[0]].name if len(bad) else None


def _usual(past: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each column's finite values; NaN for fewer than 16."""
    usable = np.isfinite(past)
    count = usable.sum(0)
    enough = count >= MIN_HISTORY
    values = np.where(usable, past, 0.0).astype(np.float64)
    mean = values.sum(0) / np.maximum(count, 1)
    sd = np.sqrt(np.where(usable, (values - mean) ** 2, 0.0).sum(0) / np.maximum(count, 1))
    return np.where(enough, mean, np.nan), np.where(enough, np.maximum(sd, MIN_SD_SHARE * mean), np.nan)


def _clip_factors(recording: Recording, steps: np.ndarray, norms: np.ndarray) -> np.ndarray:
    """What clipping divided each step's gradients by; 1 where nothing was logged."""
    logged_steps, unclipped = recording.series("run", "run", "unclipped_grad_norm")
    factors = np.ones(len(steps))
    _, here, there = np.intersect1d(steps, logged_steps, return_indices=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = unclipped[there].astype(np.float64) / norms[here]
    factors[here] = np.where(np.isfinite(found) & (found > 0), found, 1.0)
    return factors


def _layer_norms(recording: Recording, sites: Sequence[Site], steps: np.ndarray) -> np.ndarray:
    """Gradient norms of all layers at these steps, ``(num_steps, num_sites)``; NaN where there is no row."""
    found_steps, values = recording.matrix("param_grad", "l2_norm", sites)
    out = np.full((len(steps), len(sites)), np.nan)
    _, here, there = np.intersect1d(steps, found_steps, return_indices=True)
    out[here] = values[there]
    return out
