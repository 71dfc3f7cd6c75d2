"""Spike triage: at which step the loss or the gradient norm jumped, and what left its own band first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kilolayer.recording.departures import MIN_HISTORY, NUM_SDS, WINDOW, Band, Departure, Places, usual
from kilolayer.recording.recording import Recording
from kilolayer.recording.site import Site


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
    """A step whose gradient norm or loss lies beyond ``mean + 6 sd`` of the last 128 steps, or is not finite.

    ``grad_norm``, ``mean`` and ``sd`` are those of the gradient norm, NaN where there is none; ``loss_factor`` is the
    loss over its mean, ``None`` where the loss did not jump.

    ``departures`` are the places that left their own band with it, in order: by step, and of one step the forward pass
    before the backward pass. Activations are known where they were sampled.

    ``rises`` are the weight matrices among them: those that jumped first come first; of those that did so at the same
    step the largest, and of those that are not finite the one nearest to the output, where the backward pass met it
    first. ``nonfinite_activation`` is the first tensor of the forward pass that was not finite at this step, where that
    was sampled.
    """

    step: int
    grad_norm: float
    mean: float
    sd: float
    rises: tuple[Rise, ...]
    nonfinite_activation: str | None = None
    departures: tuple[Departure, ...] = ()
    loss_factor: float | None = None

    @property
    def first_site(self) -> str | None:
        """Where it began: what left its own band first; ``None`` where no single place did."""
        if self.departures:
            return self.departures[0].site
        if self.nonfinite_activation is not None:
            return self.nonfinite_activation
        return self.rises[0].site if self.rises else None

    def __str__(self) -> str:
        text = f"step {self.step}: {self._headline()}"
        if self.nonfinite_activation is not None:
            text += f"; the forward pass is not finite from {self.nonfinite_activation} on"
        if self.departures:
            first = self.departures[0]
            what = {"activation": "activation, ", "activation_grad": "gradient there, "}.get(first.role, "")
            more = f", {len(self.departures) - 1} more with it" if len(self.departures) > 1 else ""
            return f"{text}; {first.site} rose first ({what}step {first.step}, {first.factor:.3g}x by then){more}"
        return text if self.nonfinite_activation is not None else f"{text}; no single place stands out"

    def _headline(self) -> str:
        usual = f"mean {self.mean:.3g} of the steps before"
        if self.loss_factor is not None and not self.grad_norm > self.mean + self.sd and np.isfinite(self.grad_norm):
            return f"loss {self.loss_factor:.3g}x the mean of the steps before"
        if not np.isfinite(self.grad_norm):
            return "loss not finite" if self.loss_factor == np.inf else "gradient norm not finite"
        return f"gradient norm {self.grad_norm:.3g}, {(self.grad_norm - self.mean) / self.sd:.0f} sd above the {usual}"


def find_spikes(recording: Recording, *, window: int = WINDOW, num_sds: float = NUM_SDS) -> list[Spike]:
    """The spikes of a run's gradient norm and loss, each with the places that left their own band first.

    A step is a spike where ``norm > mean + num_sds * sd``, mean and standard deviation over the finite ones of the
    ``window`` steps before it (at least 16), or where the norm is not finite; the loss is judged alike where it was
    logged. Spikes at consecutive steps are one. A place's own gradient or activation is judged alike over the 16 steps
    up to the spike, against the steps before those.

    Where ``unclipped_grad_norm`` was logged, the norms are those before clipping: clipping divides all gradients by
    one number.

    Raises:
        ValueError: ``window`` < 16, ``num_sds`` <= 0, or a recording without gradient norms.

    Examples:
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

    Examples:
        >>> from kilolayer.recording import RecordingWriter, Site
        >>> writer = RecordingWriter()
        >>> writer.sites.append(Site("0.weight", "0", "weight", 0))
        >>> for step in range(40):
        ...     norm = 9.0 if step == 39 else 1.0 + 0.01 * (step % 2)
        ...     writer.add(step, "0.weight", "param_grad", "l2_norm", norm)
        ...     writer.add(step, "run", "run", "grad_norm", norm)
        >>> trace_spike(writer.close(), 39).rises[0].site
        '0.weight'
    """
    triage = _Triage(recording, window, num_sds)
    at = np.flatnonzero(triage.steps == step)
    if not len(at):
        raise ValueError(f"this recording has no gradient norm of step {step}")
    return triage.examine(int(at[0]))


class _Triage:
    """A recording's gradient norms and losses as arrays over steps, gradients before clipping where that is known."""

    def __init__(self, recording: Recording, window: int, num_sds: float):
        self.band = Band(window, num_sds)
        self.steps, norms = recording.series("run", "run", "grad_norm")
        if not len(self.steps):
            raise ValueError("this recording has no gradient norm per step; record one with kilolayer.Monitor")
        factors = _clip_factors(recording, self.steps, norms)
        self.norms = norms * factors
        self.losses = _losses(recording, self.steps)
        self.sites = sorted((site for site in recording.sites if site.kind == "weight"), key=lambda site: site.order)
        self.layers = _layer_norms(recording, self.sites, self.steps) * factors[:, None]
        self.places = Places(recording, self.band)

    def find(self) -> list[int]:
        """Places of the steps at which a spike begins."""
        found = []
        was_spike = False
        for at in range(len(self.steps)):
            is_spike = self._is_beyond(self.norms, at) or self._is_beyond(self.losses, at)
            if is_spike and not was_spike:
                found.append(at)
            was_spike = is_spike
        return found

    def examine(self, at: int) -> Spike:
        """The spike at one place."""
        step = int(self.steps[at])
        mean, sd = usual(self.norms[max(0, at - self.band.window) : at, None])
        is_finite = bool(np.isfinite(self.norms[at]))
        jumps = self.band.jumps(self.steps, self.layers, step, nonfinite=not is_finite)
        rises = sorted(((since, -factor, -column) for column, since, factor in jumps))
        weights = [(self.sites[column], since, factor) for column, since, factor in jumps]
        return Spike(
            step=step,
            grad_norm=float(self.norms[at]),
            mean=float(mean[0]),
            sd=float(sd[0]),
            rises=tuple(Rise(self.sites[-column].name, since, -factor) for since, factor, column in rises),
            nonfinite_activation=None if is_finite else self.places.first_nonfinite(step),
            departures=self.places.departures(step, weights, nonfinite=not is_finite),
            loss_factor=self._loss_factor(at),
        )

    def _is_beyond(self, series: np.ndarray, at: int) -> bool:
        mean, sd = usual(series[max(0, at - self.band.window) : at, None])
        # A loss that was not logged at a step reads NaN as well.
        is_lost = not np.isfinite(series[at]) and (series is self.norms or np.isinf(series[at]))
        return bool(is_lost or series[at] > mean[0] + self.band.num_sds * sd[0])

    def _loss_factor(self, at: int) -> float | None:
        if not self._is_beyond(self.losses, at):
            return None
        mean, _ = usual(self.losses[max(0, at - self.band.window) : at, None])
        return float(self.losses[at] / mean[0]) if np.isfinite(self.losses[at]) else np.inf


def _losses(recording: Recording, steps: np.ndarray) -> np.ndarray:
    """The loss at these steps, NaN where it was not logged."""
    found_steps, values = recording.series("run", "run", "loss")
    out = np.full(len(steps), np.nan)
    _, here, there = np.intersect1d(steps, found_steps, return_indices=True)
    out[here] = values[there]
    return out


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
