"""Rules read a recording and return findings: one root cause first, its consequences folded under it."""

from kilolayer.diagnosis.finding import Finding, Rival
from kilolayer.diagnosis.judge import RULES, Diagnosis, diagnose
from kilolayer.diagnosis.judge_examined import EXAMINED_RULES
from kilolayer.diagnosis.trial import Trial

__all__ = ["EXAMINED_RULES", "RULES", "Diagnosis", "Finding", "Rival", "Trial", "diagnose"]
