"""SIG117 and on: attention, output logits, recurrence."""

from __future__ import annotations

import math

from kilolayer.diagnosis.cards import report
from kilolayer.diagnosis.chains import Row
from kilolayer.diagnosis.examined import Examined
from kilolayer.diagnosis.finding import Finding

PEAKED = 0.8
"""Mean of the largest attention weight per row beyond which a row is all but one-hot: its softmax's slope, at most
p (1 - p), is below a fifth."""

LOUD_SCORES = 4.0
"""RMS of attention scores; unit queries and keys give 1 with the factor 1/sqrt(d), and sqrt(d) without."""

GROWN = 4.0
LARGEST_SCORE = 50.0
"""Scores beyond this leave nothing but the largest: exp(-50) is below the last digit of float32."""

LOUD_GRADIENT = 10.0
"""Gradient of the recurrent weights over their size: a step of 0.1 times it turns them into others."""


def attention_unscaled(found: Examined) -> Finding | str | None:
    """SIG117: scores without 1/sqrt(d), and rows that are one-hot from the start."""
    rows = [row for row in _attention(found) if not row["is_scaled"] and _is_peaked(row)]
    if not rows:
        return None
    size = rows[0]["query_size"]
    return report(
        "attention-unscaled",
        f"{len(rows)} attentions do not divide their scores by sqrt(d): scores have RMS {rows[0]['logits_rms']:.3g}, "
        f"and the largest weight of a row is {rows[0]['peak']:.2f} on average, at step 0.",
        sites=[row["path"] for row in rows],
        severity="warning" if found.outcome == "learns" else "error",
        confidence=0.9,
        measured=rows[0]["logits_rms"],
        predicted=None if not size else rows[0]["logits_rms"] / math.sqrt(size),
    )


def attention_saturated(found: Examined) -> Finding | str | None:
    """SIG118: rows that are one-hot from the start though scores are scaled."""
    rows = [row for row in _attention(found) if row["is_scaled"] and _is_peaked(row)]
    if len(rows) < 0.5 * len(_attention(found)) or not rows or not found.fails:
        return None
    return report(
        "attention-saturated",
        f"The largest weight of a row is {rows[0]['peak']:.2f} on average at step 0 (scores have RMS "
        f"{rows[0]['logits_rms']:.3g}), in {len(rows)} attentions.",
        sites=[row["path"] for row in rows],
        confidence=0.8,
        measured=rows[0]["peak"],
        predicted=1 / rows[0]["row_size"],
    )


def attention_logits_growing(found: Examined) -> Finding | str | None:
    """SIG119: scores that grow until nothing but the largest counts."""
    if found.end is None:
        return "there was no end of a run"
    later = [row for row in found.end["softmaxes"] if row["is_attention"]]
    pairs = [
        (before, after)
        for before, after in zip(_attention(found), later, strict=False)
        if before["logits_max"] and after["logits_max"]
    ]
    grown = [
        (before, after)
        for before, after in pairs
        if after["logits_max"] > max(LARGEST_SCORE, GROWN * before["logits_max"])
    ]
    if not grown or not found.fails:
        return None
    before, after = grown[0]
    return report(
        "attention-logits-growing",
        f"The largest attention score grows from {before['logits_max']:.3g} to {after['logits_max']:.3g}, in "
        f"{len(grown)} attentions.",
        sites=[after["path"] for _, after in grown],
        confidence=0.7,
        measured=after["logits_max"] / before["logits_max"],
        predicted=1.0,
    )


def output_logits_drifting(found: Examined) -> Finding | str | None:
    """SIG120: what all logits have in common grows, and does nothing but cost digits."""
    if found.end is None or found.main_loss is None or found.main_loss["kind"] != "nll":
        return "there was no end of a run with classes"
    if not found.fails or not found.end["outputs"] or not found.step0["outputs"]:
        return None
    row, start = found.end["outputs"][0], found.step0["outputs"][0]
    own = found.end["losses"][0]
    spread = own["high"] - own["low"] if own["low"] is not None and own["high"] is not None else math.nan
    if not (row["rms"] > 30 and row["rms"] > 10 * max(start["rms"], 1.0) and row["rms"] > 3 * spread):
        return None
    return report(
        "output-logits-drifting",
        f"The outputs' RMS grows from {start['rms']:.3g} to {row['rms']:.3g}, while their differences span "
        f"{spread:.3g}.",
        measured=row["rms"] / spread,
        predicted=1.0,
        confidence=0.6,
    )


def recurrence_explodes(found: Examined) -> Finding | str | None:
    """GRD202: a gradient that grows on its way back through time, and updates that ruin the model at once."""
    recurrences = found.structure["recurrences"]
    if not recurrences or found.outcome not in ("non-finite", "diverged"):
        return None
    rows = [row for row in found.trained if len(row["shape"]) >= 2 and _is_inside(row["name"], recurrences)]
    loud = [row for row in rows if row["rms"] and row["grad_rms"] and row["grad_rms"] > LOUD_GRADIENT * row["rms"]]
    if not loud:
        return None
    worst = max(loud, key=lambda row: row["grad_rms"] / row["rms"])
    times = max(one["times"] for one in recurrences)
    return report(
        "recurrence-explodes",
        f"The recurrent weights run {times} times, and their gradient is {worst['grad_rms'] / worst['rms']:.3g} times "
        f"their size at step 0; the loss is {'not finite' if found.outcome == 'non-finite' else 'growing'} soon after.",
        sites=[row["name"] for row in loud],
        confidence=0.85,
        measured=worst["grad_rms"] / worst["rms"],
        predicted=1.0,
    )


def _is_inside(name: str, recurrences: list[Row]) -> bool:
    return any(not one["path"] or name == one["path"] or name.startswith(one["path"] + ".") for one in recurrences)


def _attention(found: Examined) -> list[Row]:
    return [row for row in found.step0["softmaxes"] if row["is_attention"] and row["row_size"] > 3]


def _is_peaked(row: Row) -> bool:
    return (row["peak"] or 0) > PEAKED and (row["logits_rms"] or 0) > LOUD_SCORES
