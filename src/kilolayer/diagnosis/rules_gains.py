"""DEP609: the gains that DeepNorm's matrices start with, role by role."""

from __future__ import annotations

import math

import numpy as np

from kilolayer.diagnosis.cards import report
from kilolayer.diagnosis.chains import Row
from kilolayer.diagnosis.examined import Examined
from kilolayer.diagnosis.finding import Finding

MIN_SUMS = 8
"""Fewer sums ask for a beta near 1."""

MISSING = 1.5
"""Measured over wanted gain from which on beta was left out: that of 6 layers is 0.38, and bases differ by less."""

PLAIN_BETA = 0.75
"""A beta above this is hard to tell from a base that is a little smaller than Xavier's."""

SIGMAS, LEAST = 5.0, 0.03
"""A gain is a number's where it lies within five of its own standard errors, or 3 %."""

WORDS = {
    "query": "query",
    "key": "key",
    "value": "value",
    "attention_out": "attention output",
    "feedforward_in": "first feed-forward",
    "feedforward_gate": "feed-forward gate",
    "feedforward_out": "last feed-forward",
}
SELECTING = ("query", "key", "feedforward_gate")
"""They choose what passes rather than carry it: beta leaves them alone."""


ENDING = ("attention_out", "feedforward_out")


def init_gain_wrong(found: Examined) -> Finding | str | None:
    """DEP609: DeepNorm's skip scale is right, and beta is missing where it belongs, or stands on query and key."""
    fits = [fit for fit in found.structure["depth_fits"] if fit["rules"] and fit["num_branches"] >= MIN_SUMS]
    if not fits:
        return None
    if not found.structure.get("gains"):
        return "the matrices' roles or initial gains cannot be read: another kind of branch, or a trained model"
    rows = wrong_gains(found)
    if not rows:
        return None
    return _finding(found, rows, _say_too_many(rows) if rows[0]["role"] in SELECTING else _say_missing(rows))


def wrong_gains(found: Examined) -> list[Row]:
    """The rows of :func:`init_gain_wrong`'s finding, with ``wanted`` and ``beta`` of the rule that fits best."""
    missing, too_many = [], []
    for fit in found.structure["depth_fits"]:
        own = [row for row in found.structure.get("gains", []) if row["chain"] == fit["chain"]]
        if not own or not fit["rules"] or fit["num_branches"] < MIN_SUMS:
            continue
        under = [_held_against(own, rule) for rule in fit["rules"]]
        least = min(under, key=lambda pair: len(pair[0]) + len(pair[1]))
        missing += least[0]
        too_many += least[1]
    return missing or too_many


def _held_against(rows: list[Row], rule: str) -> tuple[list[Row], list[Row]]:
    """Of one stack under one rule: the rows that lack beta, and those that have it for nothing."""
    settled = [{**row, "wanted": row["wanted"][rule], "beta": row["beta"][rule]} for row in rows]
    by_role = {role: [row for row in settled if row["role"] == role] for role in WORDS}
    carrying = [same for role, same in by_role.items() if same and role not in SELECTING]
    missing = [row for same in carrying if _excess(same) >= MISSING for row in same]
    # Query, key or gate have it where all else has it too: no other base gives all of them that gain.
    if not carrying or not all(_is_beta(same) for same in carrying):
        return missing, []
    return missing, [row for role in SELECTING if _is_beta(by_role[role]) for row in by_role[role]]


def _excess(rows: list[Row]) -> float:
    return _median([row["gain"] / (row["wanted"] * _base(row)) for row in rows])


def _is_beta(rows: list[Row]) -> bool:
    if not rows or (beta := _median([row["beta"] for row in rows])) > PLAIN_BETA:
        return False
    error = _median([row["error"] for row in rows]) / math.sqrt(len(rows))
    gain = math.sqrt(float(np.mean([row["gain"] ** 2 for row in rows])))
    return abs(gain - beta) <= max(LEAST, SIGMAS * error) * beta


def _base(row: Row) -> float:
    """Gain of the largest base in use: Xavier's, or Kaiming's for a matrix in front of an activation."""
    if row["role"] != "feedforward_in":
        return 1.0
    return float(max(1.0, math.sqrt((row["fan_in"] + row["fan_out"]) / row["fan_in"])))


def _say_missing(rows: list[Row]) -> str:
    return (
        f"The skip scale is DeepNorm's, and beta ({_of(rows, 'beta'):.2f} here) is not on the {_roles(rows)} "
        f"weights: they start with gain {_gain(rows):.2f}."
    )


def _say_too_many(rows: list[Row]) -> str:
    said = (
        f"The {_roles(rows)} weights start with gain {_gain(rows):.2f}, DeepNorm's beta of this depth, and 1 is wanted"
    )
    on_scores = {row["role"] for row in rows} & {"query", "key"}
    left = _gain(rows) ** len(on_scores)
    scores = f", so that attention scores are {left:.2f} of what they should be" if on_scores else ""
    return f"{said}{scores}. Beta belongs on value, output and feed-forward weights alone."


def _finding(found: Examined, rows: list[Row], message: str) -> Finding:
    sure = min(abs(math.log(row["gain"] / row["wanted"])) for row in rows if row["gain"] > 0)
    return report(
        "init-gain-wrong",
        message,
        sites=[row["weight"] for row in rows],
        severity=_severity(found, rows),
        confidence=0.85 if sure > math.log(2) else 0.75,
        measured=_gain(rows),
        predicted=_of(rows, "wanted"),
        rivals=[
            ("alpha-wrong-for-depth", "the skip scale is that of this depth"),
            ("init-too-large", f"measured role by role: {_others(found, rows)}"),
        ],
        evidence=tuple({"step": 0, "site": row["weight"], "role": "param", "stat": "xavier_gain", "value": row["gain"]}
                       for row in rows[:8]),
    )  # fmt: skip


def _severity(found: Examined, rows: list[Row]) -> str:
    """A run that learns although beta is missing on what begins the branches only is told of it, not warned."""
    if rows[0]["role"] in SELECTING:
        return "warning"
    if found.outcome == "learns" and not any(row["role"] in ENDING for row in rows):
        return "info"
    return "error" if found.fails else "warning"


def _others(found: Examined, rows: list[Row]) -> str:
    wrong = {(row["weight"], str(row["part"])) for row in rows}
    rest = [row for row in found.structure["gains"] if (row["weight"], str(row["part"])) not in wrong]
    roles = dict.fromkeys(row["role"] for row in rest)
    said = [f"{WORDS[role]} {_gain([row for row in rest if row['role'] == role]):.2f}" for role in roles]
    return ", ".join(said) if said else "no matrix has the gain it should have"


def _roles(rows: list[Row]) -> str:
    names = [WORDS[role] for role in dict.fromkeys(row["role"] for row in rows)]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _gain(rows: list[Row]) -> float:
    return _median([row["gain"] for row in rows])


def _of(rows: list[Row], key: str) -> float:
    return _median([row[key] for row in rows])


def _median(values: list[float]) -> float:
    return float(np.median(values)) if values else math.nan
