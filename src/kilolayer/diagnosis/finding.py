"""A finding: one cause, where it starts, the number that shows it, what it should be, and what helps."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from kilolayer.representation import repr_html

SEVERITIES = ("info", "warning", "error")


@dataclass(frozen=True)
class Rival:
    """Another cause that could look like this one, and the measurement that rules it out.

    Examples:
        >>> Rival("lr-too-high", "the first update changes weights by 3.6e-03 of their size").cause
        'lr-too-high'
    """

    cause: str
    ruled_out_by: str

    def to_dict(self) -> dict[str, Any]:
        """The rival as a JSON-ready dictionary."""
        return {"cause": self.cause, "ruled_out_by": self.ruled_out_by}


@dataclass(frozen=True)
class Finding:
    """What a rule concluded.

    ``measured`` and ``predicted`` are the same quantity, which ``formula`` names; ``None`` where a cause has
    no number. ``confidence`` lies in 0..1. ``evidence`` holds the rows (as dictionaries) the rule read,
    ``consequences`` the findings this one explains.

    Raises:
        ValueError: unknown ``severity``, or ``confidence`` outside 0..1.
    """

    code: str
    cause: str
    severity: str
    confidence: float
    first_site: str | None
    last_site: str | None
    measured: float | None
    predicted: float | None
    formula: str
    message: str
    remedy: str
    reference: str
    rivals: tuple[Rival, ...] = ()
    evidence: tuple[dict[str, Any], ...] = ()
    consequences: tuple[Finding, ...] = field(default=())

    _repr_html_ = repr_html

    def __post_init__(self) -> None:
        if self.severity not in SEVERITIES:
            raise ValueError(f"severity {self.severity!r} is unknown; use one of {', '.join(SEVERITIES)}")
        if not 0 <= self.confidence <= 1:
            raise ValueError(f"confidence {self.confidence} lies outside 0..1")

    def with_consequences(self, consequences: tuple[Finding, ...]) -> Finding:
        """The finding with others folded under it."""
        return replace(self, consequences=consequences)

    def to_dict(self) -> dict[str, Any]:
        """The finding as a JSON-ready dictionary; numbers that are not finite become ``None``."""
        return {
            "code": self.code,
            "cause": self.cause,
            "severity": self.severity,
            "confidence": self.confidence,
            "first_site": self.first_site,
            "last_site": self.last_site,
            "measured": finite_or_none(self.measured),
            "predicted": finite_or_none(self.predicted),
            "formula": self.formula,
            "rivals": [rival.to_dict() for rival in self.rivals],
            "remedy": self.remedy,
            "message": self.message,
            "reference": self.reference,
            "evidence": list(self.evidence),
            "consequences": [finding.to_dict() for finding in self.consequences],
        }

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Finding:
        """Read back what :meth:`to_dict` wrote."""
        values = dict(fields)
        values["rivals"] = tuple(Rival(**rival) for rival in values["rivals"])
        values["evidence"] = tuple(values["evidence"])
        values["consequences"] = tuple(cls.from_dict(one) for one in values["consequences"])
        return cls(**values)


def finite_or_none(value: float | None) -> float | None:
    """JSON knows no NaN and no infinity: they become ``None``."""
    return value if value is not None and math.isfinite(value) else None
