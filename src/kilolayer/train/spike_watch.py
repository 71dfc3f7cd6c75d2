"""Spikes as they happen: loss or gradient norm beyond what the last steps make usual, traced to a layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kilolayer.monitor import Spike, trace_spike
from kilolayer.recording import RecordingWriter, Site
from kilolayer.recording.departures import LOOKBACK, MIN_HISTORY, MIN_SD_SHARE, NUM_SDS, WINDOW

KEPT = WINDOW + LOOKBACK


@dataclass(frozen=True)
class Alarm:
    """A step that is out of the ordinary.

    Attributes:
        step: of the run.
        what: ``"loss"`` or ``"gradient norm"``.
        value, limit: what was measured, and ``mean + 6 sd`` of the last 128 steps.
        first_site: the weight matrix whose gradient norm rose first, if one stands out.
        since: the step at which it rose.
    """

    step: int
    what: str
    value: float
    limit: float
    first_site: str | None
    since: int | None

    def __str__(self) -> str:
        beyond = f", beyond mean + {NUM_SDS:g} sd = {self.limit:.4g}" if math.isfinite(self.value) else ""
        text = f"step {self.step}: {self.what} {self.value:.4g}{beyond}"
        if self.first_site is None:
            return f"{text}; no weight matrix stands out"
        return f"{text}; the gradient of {self.first_site} rose first (step {self.since})"


class SpikeWatch:
    """Keeps loss and gradient norms of the last steps, and says when a step leaves their range.

    Loss and norm are judged against ``mean + 6 sd`` over the 128 steps before, at least 16 of them. A spike counts
    in later windows as the limit that it passed, so that one does not hide the next.

    Args:
        names: the weight matrices, in order of the forward pass.
    """

    def __init__(self, names: Sequence[str]):
        self.names = list(names)
        self._usual = np.zeros((0, 2))
        self._rows = np.zeros((0, 2 + len(self.names)))

    def look(self, step: int, loss: float, norms: np.ndarray, *, total: float) -> Alarm | None:
        """Take in a step and judge it.

        Args:
            step: of the run; steps come in order.
            loss: in nats.
            norms: gradient norm of each weight matrix, ``(num_names,)``.
            total: norm of all gradients, before clipping.
        """
        found = np.array([loss, total])
        limits = self._limits()
        self._rows = np.concatenate((self._rows, [[step, total, *norms]]))[-KEPT:]
        is_out = ~np.isfinite(found) | (found > limits)
        counted = np.where(is_out, limits, found)
        if np.isfinite(counted).all():
            self._usual = np.concatenate((self._usual, counted[None]))[-WINDOW:]
        if not is_out.any():
            return None
        which = int(np.argmax(is_out))
        spike = self.trace(step)
        since = spike.rises[0].step if spike.rises else None
        return Alarm(
            step, ("loss", "gradient norm")[which], float(found[which]), float(limits[which]), spike.first_site, since
        )

    def trace(self, step: int) -> Spike:
        """The weight matrices whose gradients rose on the way to the step taken in last."""
        writer = RecordingWriter()
        writer.sites = [Site(name, name, "weight", order) for order, name in enumerate(self.names)]
        codes = [writer.code("run", "run", "grad_norm")]
        codes += [writer.code(name, "param_grad", "l2_norm") for name in self.names]
        for row in self._rows:
            writer.add_many(int(row[0]), np.array(codes), row[1:])
        return trace_spike(writer.close(), step)

    def _limits(self) -> np.ndarray:
        if len(self._usual) < MIN_HISTORY:
            return np.full(2, math.inf)
        mean, sd = self._usual.mean(0), self._usual.std(0)
        return mean + NUM_SDS * np.maximum(sd, MIN_SD_SHARE * np.abs(mean))

    def state(self) -> dict[str, Tensor]:
        """All of it, for a checkpoint."""
        return {"usual": torch.from_numpy(self._usual.copy()), "rows": torch.from_numpy(self._rows.copy())}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from what :meth:`state` gave."""
        self._usual, self._rows = state["usual"].numpy().copy(), state["rows"].numpy().copy()
