"""From a recording to one root finding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from kilolayer.diagnosis.evidence import Evidence
from kilolayer.diagnosis.examined import Examined
from kilolayer.diagnosis.finding import SEVERITIES, Finding
from kilolayer.diagnosis.judge_examined import judge_examined
from kilolayer.diagnosis.outcome import describe_failure
from kilolayer.diagnosis.rules_depth import batchnorm_without_skip, post_norm_too_deep, skip_missing
from kilolayer.diagnosis.rules_optimizer import lr_too_high, lr_too_low
from kilolayer.diagnosis.rules_signal import (
    batchnorm_batch_too_small,
    init_too_large,
    init_too_small,
    inputs_unscaled,
    norm_missing,
)
from kilolayer.diagnosis.rules_units import dead_units
from kilolayer.diagnosis.trial import Trial
from kilolayer.recording import Recording
from kilolayer.representation import repr_html

NotEvaluated = str
Rule = Callable[[Evidence], Finding | NotEvaluated | None]
"""A rule returns a finding, ``None`` (looked, and clean) or the reason it could not look."""

RULES: tuple[Rule, ...] = (
    inputs_unscaled,
    batchnorm_batch_too_small,
    dead_units,
    init_too_small,
    init_too_large,
    norm_missing,
    batchnorm_without_skip,
    skip_missing,
    post_norm_too_deep,
    lr_too_high,
    lr_too_low,
)
"""In order of precedence: a cause stands before those it would explain."""


@dataclass(frozen=True)
class Diagnosis:
    """What the rules concluded.

    ``root`` is ``None`` for a model at which nothing stands out. ``not_evaluated`` maps a rule's name to the reason it
    could not look. Where the verdict comes from an examination, ``trials`` are the remedies tried, ``recording`` is
    what was judged, ``seconds`` how long it all took, and ``outcome`` what the run came to: ``learns``, ``slow``,
    ``stuck``, ``diverged``, ``non-finite`` or ``unfinished``, ``None`` without a run. ``unexplained`` says how a run
    failed that no rule explains; it weighs as much as a warning.
    """

    root: Finding | None
    findings: tuple[Finding, ...]
    not_evaluated: dict[str, str]
    trials: tuple[Trial, ...] = ()
    recording: Recording | None = field(default=None, repr=False, compare=False)
    seconds: float | None = None
    outcome: str | None = None
    unexplained: str | None = None

    _repr_html_ = repr_html

    @property
    def severity(self) -> str | None:
        """The root's severity; ``"warning"`` for a failure that no rule explains; ``None`` where nothing stands out."""
        if self.root is not None:
            return self.root.severity
        return "warning" if self.unexplained else None

    def is_at_least(self, severity: str) -> bool:
        """Whether something of this severity or a graver one was found.

        Raises:
            ValueError: no severity.

        Examples:
            >>> Diagnosis(None, (), {}, unexplained="The loss stays.").is_at_least("error")
            False
        """
        if severity not in SEVERITIES:
            raise ValueError(f"severity {severity!r} is unknown; use one of {', '.join(SEVERITIES)}")
        return self.severity is not None and SEVERITIES.index(self.severity) >= SEVERITIES.index(severity)

    def to_dict(self) -> dict[str, Any]:
        """The verdict as a JSON-ready dictionary, with a format number."""
        return {
            "format": 1,
            "root": None if self.root is None else self.root.to_dict(),
            "findings": [finding.to_dict() for finding in self.findings],
            "trials": [trial.to_dict() for trial in self.trials],
            "seconds": self.seconds,
            "outcome": self.outcome,
            "unexplained": self.unexplained,
            "not_evaluated": dict(self.not_evaluated),
        }


def diagnose(recording: Recording) -> Diagnosis:
    """Judge a recording.

    The first rule to find something names the root; whatever later rules find is folded under it. A run that
    trains is left alone.

    Raises:
        TypeError: something else than a recording.

    Examples:
        >>> from kilolayer.recording import RecordingWriter
        >>> diagnose(RecordingWriter().close()).root is None
        True
    """
    if not isinstance(recording, Recording):
        raise TypeError(
            f"diagnose takes a Recording, got {type(recording).__name__}; load a saved one with Recording.load(folder)"
        )
    # Of a network that fails, zeros, infinities and NaNs are what there is to read.
    with np.errstate(all="ignore"):
        if "examination" in recording.facts:
            return _conclude_examined(Examined(recording))
        evidence = Evidence(recording)
        if evidence.trains:
            return Diagnosis(None, (), {})
        return _conclude({rule.__name__: rule(evidence) for rule in RULES})


def _conclude_examined(found: Examined) -> Diagnosis:
    """The verdict on an examination, with what its run came to."""
    diagnosis = _conclude(judge_examined(found))
    unexplained = describe_failure(found) if diagnosis.root is None else None
    return replace(diagnosis, outcome=found.outcome, unexplained=unexplained)


def _conclude(verdicts: dict[str, Finding | str | None]) -> Diagnosis:
    """One root, the rest folded under it; a remark alone is no root."""
    findings = [verdict for verdict in verdicts.values() if isinstance(verdict, Finding)]
    not_evaluated = {name: verdict for name, verdict in verdicts.items() if isinstance(verdict, str)}
    # The list is ordered by precedence; among equals in order the graver one leads.
    gravest = max((SEVERITIES.index(finding.severity) for finding in findings), default=0)
    if gravest == 0:
        return Diagnosis(None, tuple(findings), not_evaluated)
    root = next(finding for finding in findings if SEVERITIES.index(finding.severity) == gravest)
    rest = tuple(finding for finding in findings if finding is not root)
    root = root.with_consequences(rest)
    return Diagnosis(root, (root, *rest), not_evaluated)
