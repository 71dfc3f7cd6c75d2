"""DEP605: norms on the skips, in front of a skip scale above 1, or over a single entry."""

from __future__ import annotations

import math

import numpy as np

from kilolayer.diagnosis.cards import report
from kilolayer.diagnosis.chains import Row
from kilolayer.diagnosis.examined import Examined
from kilolayer.diagnosis.finding import Finding
from kilolayer.diagnosis.rules_stream import (
    LOST_IDENTITY,
    MIN_LAYERS,
    MUCH_GROWTH,
    later_of,
    rivals_of,
    signs_of_collapse,
    streams_of,
)

MOST = 0.8
"""Share of the sums with a norm behind them from which on the network is a post-norm one: DEP601's business."""

BIG_UPDATE = 0.1
"""Update ratio at step 0 from which on the learning rate is the cause."""

AMPLIFIED = 1.02


def norm_over_one(found: Examined) -> Finding | str | None:
    """DEP605: a norm over one entry, whose result does not depend on what comes in."""
    rows = found.structure.get("norms_over_one", [])
    if not rows or found.outcome == "learns":
        return None
    left = "0 and its bias" if rows[0]["norm_kind"] == "layer" else "nothing but the sign"
    return report(
        "norm-misplaced",
        f"The norm {rows[0]['path'] or 'of the model itself'} is taken over one entry, so that {left} are left of "
        "whatever comes in, and no gradient gets past it.",
        sites=[row["path"] for row in rows],
        confidence=0.95,
        measured=1.0,
        predicted=2.0,
        formula="entries that the norm is taken over, and the fewest of which something is left",
        remedy="Take the norm over the features of a wider layer, or leave it out here.",
        reference="Ba et al. 2016, arXiv:1607.06450, section 3",
        rivals=rivals_of(found),
    )


def norm_on_skips(found: Examined) -> Finding | str | None:
    """DEP605: norms that leave a branch to grow, or a skip: on the skip instead, or without one behind the sum."""
    return (_on_the_skips(found) or _in_front_of_large_skips(found)) if _is_suspect(found) else None


def norm_behind_some(found: Examined) -> Finding | str | None:
    """DEP605: norms behind a part of a stream's sums, which cut the skip off as often."""
    return _behind_some_sums(found) if _is_suspect(found) else None


def _is_suspect(found: Examined) -> bool:
    return found.fails and (found.update_ratio or 0) <= BIG_UPDATE


def _on_the_skips(found: Examined) -> Finding | None:
    """``norm(x) + branch(x)``: the skip is normalized and the branch is not."""
    rows = found.structure.get("normed_skips", [])
    shares = [row["skip_rms"] / row["sum_rms"] for row in rows if row["skip_rms"] and row["sum_rms"]]
    kept = float(np.prod(np.minimum(shares, 1.0)))
    if len(shares) < MIN_LAYERS or kept > LOST_IDENTITY:
        return None
    share = kept ** (1 / len(shares))
    return report(
        "norm-misplaced",
        f"In {len(rows)} sums the norm stands on the skip, norm(x) + branch(x), and the branch reads x as it is: each "
        f"sum leaves {share:.3f} of the skip, {kept:.0e} over all of them, so the identity path is lost.",
        sites=[row["path"] for row in rows],
        measured=share,
        predicted=1.0,
        rivals=rivals_of(found),
        evidence=_evidence(rows),
    )


def _behind_some_sums(found: Examined) -> Finding | None:
    """Norms behind some of a stream's sums, and inside the branches of the others."""
    for rows in streams_of(found):
        behind = ["post" in row["norm_placement"] and "pre" not in row["norm_placement"] for row in rows]
        if sum(behind) < MIN_LAYERS or sum(behind) >= MOST * len(rows) or not found.struggles:
            continue
        kept, when = _kept_between_norms(rows, behind), ""
        if kept > LOST_IDENTITY and signs_of_collapse(later := later_of(found, rows)) and len(later) == len(rows):
            kept, when = _kept_between_norms(later, behind), " once it trains"
        if kept > LOST_IDENTITY:
            continue
        first = behind.index(True)
        share = kept ** (1 / sum(behind))
        return report(
            "norm-misplaced",
            f"A norm stands behind {sum(behind)} of {len(rows)} sums, on the stream itself, and inside the branches of "
            f"others: from one such norm to the next {share:.3f} of the skip is left{when}, {kept:.0e} over all.",
            sites=[row["path"] for row, is_behind in zip(rows, behind, strict=True) if is_behind],
            confidence=0.85,
            measured=share,
            predicted=1.0,
            rivals=rivals_of(found),
            evidence=_evidence(rows[first : first + 8]),
        )
    return None


def _kept_between_norms(rows: list[Row], behind: list[bool]) -> float:
    """What the norms on a stream leave of what came in: from each to the next, RMS(skip) over RMS(sum)."""
    kept, start, scale = 1.0, None, 1.0
    for row, is_behind in zip(rows, behind, strict=True):
        start = row["skip_rms"] if start is None else start
        scale *= row["skip_scale"] if row["skip_scale"] is not None else 1.0
        if is_behind and start and row["sum_rms"]:
            kept *= min(abs(scale) * start / row["sum_rms"], 1.0)
            start, scale = None, 1.0
    return kept


def _in_front_of_large_skips(found: Examined) -> Finding | None:
    """``alpha x + branch(norm(x))`` with alpha above 1: what comes in outgrows all that branches add."""
    for rows in streams_of(found):
        scales = [row["skip_scale"] for row in rows]
        if None in scales or any(row["is_learned"] or row["norm_placement"] == "none" for row in rows):
            continue
        if any("post" in row["norm_placement"] for row in rows):
            continue
        growth = float(np.prod(np.abs(scales)))
        scale = float(np.median(scales))
        if scale < AMPLIFIED or growth < MUCH_GROWTH:
            continue
        is_alpha = any(abs(scale / count**0.25 - 1) < AMPLIFIED - 1 for count in (len(rows), 2 * len(rows)))
        alpha = ", DeepNorm's alpha of this depth," if is_alpha else ""
        return report(
            "norm-misplaced",
            f"Skips are multiplied by {scale:.3f}{alpha} and no norm stands behind the sums: what comes in is "
            f"{growth:.0e} times as large behind {len(rows)} of them, and the branches add next to nothing to it.",
            sites=[row["path"] for row in rows],
            confidence=0.95 if is_alpha else 0.85,
            measured=scale,
            predicted=1.0,
            rivals=rivals_of(found),
            evidence=_evidence(rows),
        )
    return None


def _evidence(rows: list[Row]) -> tuple[Row, ...]:
    sizes = [(row["path"], name, row[f"{name}_rms"]) for row in (rows[0], rows[-1]) for name in ("skip", "sum")]
    return tuple(
        {"step": 0, "site": f"{path}:{name}", "role": "activation", "stat": "rms", "value": value}
        for path, name, value in sizes
        if value is not None and math.isfinite(value)
    )
