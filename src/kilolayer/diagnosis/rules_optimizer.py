"""UPD3xx: updates and the optimizer."""

from __future__ import annotations

import math

from kilolayer.diagnosis.evidence import Evidence
from kilolayer.diagnosis.finding import Finding, Rival

HIGH_UPDATE = 0.05
LOW_UPDATE = 1e-6
"""Median update ratios at step 0 beyond which the learning rate itself is suspect."""

LEARNS = 0.9
"""Loss over its start (or over knowing nothing) below which a run is learning, however little it had time for."""

RISEN = 1.2
"""Loss over its start (or over knowing nothing) that counts as having risen."""


def lr_too_high(evidence: Evidence) -> Finding | str | None:
    """UPD301: step 0 is sound, and the first updates ruin the model."""
    if not evidence.num_blocks:
        return "no blocks in the site table"
    ratio = evidence.update_ratio(0)
    if ratio is None or evidence.initial_loss is None or evidence.final_loss is None:
        return "losses or update ratios were not recorded"
    start = min(evidence.initial_loss, evidence.chance_loss or math.inf)
    diverged = evidence.nonfinite_step is not None or evidence.final_loss > RISEN * start
    rate = evidence.forward_rate(0)
    sound = rate is not None and 0.8 < rate < 1.25
    learns = evidence.final_loss < LEARNS * start
    if not (sound and (diverged or (ratio > HIGH_UPDATE and not learns))):
        return None
    outcome = (
        f"the loss is not finite at step {evidence.nonfinite_step}"
        if evidence.nonfinite_step is not None
        else f"the loss goes from {evidence.initial_loss:.2f} to {evidence.final_loss:.2f}"
    )
    lr = _lr(evidence)
    first, last = evidence.weights[0], evidence.weights[-1]
    return Finding(
        code="UPD301",
        cause="lr-too-high",
        severity="error",
        confidence=0.7,
        first_site=first.name,
        last_site=last.name,
        measured=ratio,
        predicted=1e-3,
        formula="median over weight matrices of ||update|| / ||weight|| at step 0; about 1e-3 in mid-run",
        message=(
            f"Step 0 is sound (signal {rate:.3f}x per block), yet {outcome} at learning rate {lr}: "
            f"the first update changes weights by {ratio:.1e} of their norm."
        ),
        remedy="Lower the learning rate tenfold, or warm it up over the first hundred steps.",
        reference="Goyal et al. 2017, arXiv:1706.02677, section 2.2",
        rivals=(Rival("init-too-large", f"the signal's RMS changes by {rate:.3f}x per block at step 0"),),
        evidence=(evidence.row(first, "update", "update_ratio", 0), evidence.row(last, "update", "update_ratio", 0)),
    )


def lr_too_low(evidence: Evidence) -> Finding | str | None:
    """UPD302: gradients are there, the updates are not."""
    if not evidence.num_blocks:
        return "no blocks in the site table"
    ratio = evidence.update_ratio(0)
    if ratio is None:
        return "update ratios were not recorded"
    rate, backward = evidence.forward_rate(0), evidence.backward_rate(0)
    if ratio == 0 or ratio >= LOW_UPDATE or evidence.nonfinite_step is not None:
        return None
    if rate is None or backward is None or not (0.8 < rate < 1.25 and 0.8 < backward < 1.25):
        return None
    first, last = evidence.weights[0], evidence.weights[-1]
    return Finding(
        code="UPD302",
        cause="lr-too-low",
        severity="warning",
        confidence=0.8,
        first_site=first.name,
        last_site=last.name,
        measured=ratio,
        predicted=1e-3,
        formula="median over weight matrices of ||update|| / ||weight|| at step 0; about 1e-3 in mid-run",
        message=(
            f"At learning rate {_lr(evidence)} an update changes weights by {ratio:.1e} of their norm: "
            f"a weight needs about {1 / ratio:.0e} steps to change by its own size."
        ),
        remedy="Raise the learning rate tenfold until the update ratio nears 1e-3.",
        reference="Karpathy, CS231n notes, neural networks 3 (ratio of updates to weights)",
        rivals=(Rival("init-too-small", f"the gradient's RMS changes by {backward:.3f}x per block"),),
        evidence=(evidence.row(first, "update", "update_ratio", 0), evidence.row(last, "update", "update_ratio", 0)),
    )


def _lr(evidence: Evidence) -> str:
    groups = evidence.recording.facts.get("param_groups") or [{}]
    lr = groups[0].get("lr")
    return "unknown" if lr is None else f"{lr:g}"
