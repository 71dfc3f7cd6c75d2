"""What a renderer is handed: runs with their recordings, findings, summaries and predictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from kilolayer.diagnosis.evidence import Evidence
from kilolayer.diagnosis.finding import Finding
from kilolayer.recording import Recording
from kilolayer.recording.spikes import Spike, find_spikes
from kilolayer.report.ratios import undefined_ratios
from kilolayer.report.trial import TrialView

HEALTHY = ("trains", "learns")
"""Outcomes of runs that got where they were meant to."""

UNJUDGED = ("trained", "stopped")
"""Outcomes that say how far a run came, not whether it learned anything."""

SummaryValue = str | float | int | None


@dataclass(frozen=True, eq=False)
class Prediction:
    """What theory expects of one statistic along the depth at step 0.

    Args:
        role: role of the rows it is compared with, such as ``"activation"``.
        stat: their statistic, such as ``"rms"``.
        sites: names of the sites, in order of depth.
        value: expected value per site, shape ``(num_sites,)``.
        low: lower end of the band, same shape; ``None`` where theory gives a value only.
        high: upper end of the band, same shape; ``None`` likewise.

    Raises:
        ValueError: an array without one number per site, or half a band.

    Examples:
        >>> curve = Prediction("activation", "rms", ("blocks.0", "blocks.1"), np.array([1.0, 0.71]))
        >>> curve.at("blocks.1")
        0.71
    """

    role: str
    stat: str
    sites: tuple[str, ...]
    value: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "sites", tuple(self.sites))
        if (self.low is None) != (self.high is None):
            raise ValueError("a band needs low and high; got one of them")
        for name in ("value", "low", "high"):
            given = getattr(self, name)
            if given is None:
                continue
            array = np.asarray(given, dtype=np.float64)
            if array.shape != (len(self.sites),):
                raise ValueError(
                    f"{name} of a prediction has shape {array.shape}; give one number per site, {len(self.sites)}"
                )
            object.__setattr__(self, name, array)

    def at(self, site: str) -> float | None:
        """The value expected at a site; ``None`` where the prediction has none."""
        return float(self.value[self.sites.index(site)]) if site in self.sites else None


@dataclass(frozen=True, eq=False)
class RunView:
    """One run as people look at it.

    Args:
        name: label, such as ``"prenorm  lr 0.05  seed 0"``.
        recording: what was measured.
        root: the root finding; ``None`` when there is none.
        findings: all findings.
        summary: ordered label -> value: loss, accuracy, seconds, outcome.
        predictions: theory's curves along the depth at step 0.
        not_evaluated: rules that had too little to go by, and why.
        trials: remedies that were tried.

    Examples:
        >>> from kilolayer.recording import RecordingWriter
        >>> run = RunView("prenorm", RecordingWriter().close())
        >>> run.was_examined
        False
    """

    name: str
    recording: Recording
    root: Finding | None = None
    findings: tuple[Finding, ...] = ()
    summary: Mapping[str, SummaryValue] = field(default_factory=dict)
    predictions: tuple[Prediction, ...] = ()
    not_evaluated: Mapping[str, str] = field(default_factory=dict)
    trials: tuple[TrialView, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "findings", tuple(self.findings))
        object.__setattr__(self, "predictions", tuple(self.predictions))
        object.__setattr__(self, "trials", tuple(self.trials))
        object.__setattr__(self, "summary", dict(self.summary))

    @property
    def was_examined(self) -> bool:
        """Whether a missing finding means anything: an empty recording is not a healthy one."""
        return self.root is not None or bool(self.findings) or len(self.recording) > 0

    @property
    def looks_healthy(self) -> bool:
        """Whether nothing was found, and there is no :attr:`doubt` that there is nothing to find."""
        return self.root is None and self.was_examined and not self.doubt

    @cached_property
    def doubt(self) -> str:
        """Why a run without a finding is not called healthy; empty where it may be."""
        outcome = self.summary.get("outcome")
        if outcome is not None and outcome not in UNJUDGED:
            return "" if outcome in HEALTHY else f"the outcome is {outcome}"
        evidence = Evidence(self.recording)
        if evidence.nonfinite_step is not None:
            return f"the loss is not finite at step {evidence.nonfinite_step}"
        bad_step = _first_nonfinite_step(self.recording)
        if bad_step is not None:
            return f"values along the depth are not finite from step {bad_step} on"
        if evidence.trains is False:
            return f"the loss went from {evidence.initial_loss:.3g} to {evidence.final_loss:.3g} only"
        if self.not_evaluated:
            several = len(self.not_evaluated) > 1
            return f"{len(self.not_evaluated)} rule{'s' if several else ''} could not be evaluated"
        return ""

    @cached_property
    def spikes(self) -> tuple[Spike, ...]:
        """Jumps of gradient norm or loss, in order; what is not finite is marked apart from them."""
        if not self.recording.has("run", "grad_norm"):
            return ()
        found = find_spikes(self.recording)
        return tuple(one for one in found if np.isfinite([one.grad_norm, one.loss_factor or 0.0]).all())

    @property
    def other_findings(self) -> tuple[Finding, ...]:
        """The findings that are neither the root nor folded under it."""
        folded = () if self.root is None else (self.root, *self.root.consequences)
        return tuple(finding for finding in self.findings if finding not in folded)

    def prediction(self, role: str, stat: str) -> Prediction | None:
        """The prediction for one role and statistic."""
        for prediction in self.predictions:
            if (prediction.role, prediction.stat) == (role, stat):
                return prediction
        return None


def _first_nonfinite_step(recording: Recording) -> int | None:
    """The first step at which a signal, a gradient or an update was recorded as NaN or infinite."""
    found = []
    for role, stat in (("activation", "rms"), ("param_grad", "l2_norm"), ("update", "update_ratio")):
        names = recording.site_names(role, stat)
        steps, values = recording.matrix(role, stat, names)
        bad = ~np.isfinite(values)
        if bad.any():
            bad &= recording.recorded(role, stat, names)
            if role == "update":
                bad &= ~undefined_ratios(recording, names)
            found += steps[bad.any(axis=1)][:1].tolist()
    return min(found, default=None)
