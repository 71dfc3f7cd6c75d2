"""DEP610: pre-norm streams in which a few of many sums do the work."""

from __future__ import annotations

import math

import numpy as np

from kilolayer.diagnosis.cards import report
from kilolayer.diagnosis.chains import Row
from kilolayer.diagnosis.examined import Examined
from kilolayer.diagnosis.finding import Finding
from kilolayer.diagnosis.rules_stream import later_of, rivals_of, streams_of

MIN_SUMS = 48
"""24 layers of two: with fewer sums nobody asks what they are good for."""

UNUSED = 0.25
"""Effective over actual number of sums below which the depth is unused; schemes made for depth have 0.8 and more."""


def depth_unused(found: Examined) -> Finding | str | None:
    """DEP610: behind a run that got somewhere, the changes that sums make to a pre-norm stream crowd at its bottom."""
    if found.outcome not in ("learns", "slow", "unfinished"):
        return None
    for rows in streams_of(found):
        is_pre = sum("pre" in row["norm_placement"] and "post" not in row["norm_placement"] for row in rows)
        if len(rows) < MIN_SUMS or is_pre < 0.8 * len(rows):
            continue
        later = later_of(found, rows)
        effective = effective_sums(later)
        if effective is None or effective > UNUSED * len(rows):
            continue
        half = len(later) // 2
        upper = math.sqrt(_median([_change(row) for row in later[half:]]))
        return report(
            "depth-unused",
            f"The changes that {len(rows)} sums make to the stream are those of {effective:.0f} equal ones at the end "
            f"of the run: each sum of the upper half changes it by {100 * upper:.1f} %, the first by "
            f"{100 * math.sqrt(_change(later[0])):.0f} %.",
            sites=[row["path"] for row in rows[round(effective) :]],
            severity="warning" if found.outcome == "slow" else "info",
            confidence=0.6,
            measured=effective,
            predicted=predicted_sums(rows),
            rivals=[*_rivals(found), *rivals_of(found)],
            evidence=tuple(
                {"step": found.run_steps, "site": f"{row['path']}:sum", "role": "activation", "stat": "branch_share",
                 "value": math.sqrt(_change(row))}
                for row in (later[0], later[half], later[-1])
            ),
        )  # fmt: skip
    return None


def effective_sums(rows: list[Row]) -> float | None:
    """How many equal sums change a stream as these do: (sum w)^2 / sum w^2, w = (RMS(branch) / RMS(sum))^2 of each.

    ``None`` where sizes are not known or nothing changes.
    """
    changes = np.array([_change(row) for row in rows], float)
    if not len(changes) or not np.isfinite(changes).all() or not changes.any():
        return None
    return float(changes.sum() ** 2 / (changes**2).sum())


def predicted_sums(rows: list[Row]) -> float | None:
    """The same for branches of one size on a skip of scale 1: w_l = 1 / (c + l), c = (RMS(x_0) / RMS(branch))^2."""
    sizes = [row["branch_rms"] for row in rows if row["branch_rms"]]
    start = rows[0]["skip_rms"]
    if not sizes or not start:
        return None
    changes = 1 / ((start / _median(sizes)) ** 2 + np.arange(1, len(rows) + 1))
    return float(changes.sum() ** 2 / (changes**2).sum())


def _change(row: Row) -> float:
    """Share of a sum's energy that its branch brings."""
    if row["branch_rms"] is None or not row["sum_rms"]:
        return math.nan
    return float((row["branch_rms"] / row["sum_rms"]) ** 2)


def _rivals(found: Examined) -> list[tuple[str, str]]:
    fell = f"the loss falls from {found.initial_loss:.3g} to {found.final_loss:.3g}"
    return [("final-norm-missing", "sums are held against the stream itself"), ("labels-unrelated", fell)]


def _median(values: list[float]) -> float:
    return float(np.median(values))
