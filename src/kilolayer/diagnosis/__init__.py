"""Rules read a recording and return findings: one root cause first, its consequences folded under it."""

from kilolayer.diagnosis.finding import Finding, Rival
from kilolayer.diagnosis.judge import RULES, Diagnosis, diagnose

__all__ = ["RULES", "Diagnosis", "Finding", "Rival", "diagnose"]
