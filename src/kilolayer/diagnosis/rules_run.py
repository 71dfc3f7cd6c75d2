"""UPD3xx and NUM4xx: what the run with the user's own optimizer showed."""

from __future__ import annotations

import math

import numpy as np

from kilolayer.diagnosis.cards import report
from kilolayer.diagnosis.examined import LEARNS, Examined
from kilolayer.diagnosis.finding import Finding

HIGH_UPDATE = 0.05
LOW_UPDATE = 1e-5
"""Update ratios at step 0 beyond which the learning rate itself is suspect: the median for the one, the largest for
the other. Healthy networks were measured at 5e-3 to 1e-2."""

TOO_HIGH_ALONE = 0.5
"""An update of half a weight's size, which speaks for itself."""

SPIKE = 6.0
"""Standard deviations above the mean of the losses before, as OLMo counts a spike."""

SHRUNK = 0.8
"""Size of the weights at the end of a run over that at its start."""

SWALLOWED = 0.9


def nan_operation(found: Examined) -> Finding | str | None:
    """NUM401: an operation makes NaN or infinity of what is finite, or a parameter holds them from the start."""
    fault = found.fault
    if fault is None or (found.is_half and fault["is_overflow"]):
        return None
    if fault["operation"] in ("input", "parameter"):
        return report(
            "nan-operation",
            f"The {fault['operation']} {fault['path']} holds NaN or infinity before step 0.",
            sites=[fault["path"]],
            remedy="Look at where its values come from: a file that was loaded, or memory that nothing was written "
            "into (torch.empty, to_empty()).",
        )
    way = "backward" if fault["is_backward"] else "forward"
    what = "infinity" if fault["is_overflow"] else "NaN"
    return report(
        "nan-operation",
        f"In the {way} pass of step 0, {fault['operation']} makes {what} from what is finite.",
        sites=[fault["path"]],
        confidence=0.9,
        measured=None,
        predicted=None,
    )


def half_overflow(found: Examined) -> Finding | str | None:
    """NUM402: numbers beyond what half precision holds."""
    fault = found.fault
    if fault is None or not (found.is_half and fault["is_overflow"]):
        return None
    return report(
        "half-overflow",
        f"In {fault['operation']} numbers exceed the largest of half precision at step 0.",
        sites=[fault["path"]],
        confidence=0.85,
        predicted=65504.0,
    )


def precision_lost(found: Examined) -> Finding | str | None:
    """NUM403: half precision swallows updates, or the optimizer divides by what has rounded to 0."""
    if found.run is None:
        return "there was no run"
    if not found.is_half or not found.fails:
        return None
    bad = found.run["nonfinite_update"]
    if bad is not None and found.fault is None:
        eps = (found.facts["optimizer"].get("groups") or [{}])[0].get("eps")
        small = "" if eps is None else f" (eps {eps:g}; the least float16 holds is 6e-8)"
        return report(
            "precision-lost",
            f"Loss and gradients of step 0 are finite, and the optimizer's step turns {bad} into NaN: what it divides "
            f"by rounds to 0 in half precision{small}.",
            sites=[bad],
            confidence=0.9,
            measured=1.0,
            predicted=0.0,
        )
    shares = found.run["swallowed_updates"]
    lost = [name for name, share in shares.items() if share > SWALLOWED]
    if not lost or len(lost) < 0.5 * len(shares):
        return None
    return report(
        "precision-lost",
        f"In {len(lost)} of {len(shares)} parameters more than {100 * SWALLOWED:.0f} % of the entries stay as they are "
        "though the optimizer steps: updates are smaller than half precision resolves.",
        sites=lost,
        confidence=0.85,
        measured=float(np.median([shares[name] for name in lost])),
        predicted=0.0,
    )


def weight_decay_dominates(found: Examined) -> Finding | str | None:
    """UPD303: decay pulls harder than the gradient, and the weights shrink to nothing."""
    if found.run is None or found.end is None:
        return "there was no end of a run"
    later = {row["name"]: row["rms"] for row in found.end["parameters"]}
    rows = [row for row in found.trained if len(row["shape"]) >= 2 and row["rms"] and row["weight_decay"]]
    pulls = [row["weight_decay"] * row["rms"] / row["grad_rms"] for row in rows if row["grad_rms"]]
    shrunk = [row for row in rows if later[row["name"]] is not None and later[row["name"]] < SHRUNK * row["rms"]]
    if not found.fails or len(shrunk) <= 0.5 * len(rows) or not shrunk:
        return None
    pull = float(np.median(pulls)) if pulls else math.inf
    per_step = max((row["lr"] or 0) * row["weight_decay"] for row in rows)
    left = float(np.median([later[row["name"]] / row["rms"] for row in shrunk]))
    # Decay alone explains the loss of size: (1 - lr * decay) ** steps, faster with momentum.
    alone = (1 - min(per_step, 1.0)) ** found.run["num_steps"]
    if pull < 1 and alone > 0.9:
        return None
    return report(
        "weight-decay-dominates",
        f"Weights shrink to {100 * left:.0f} % of their size within {found.run['num_steps']} steps: the decay "
        f"({rows[0]['weight_decay']:g} at learning rate {rows[0]['lr']:g}) pulls {pull:.2g} times as hard as the "
        "gradient at step 0.",
        sites=[row["name"] for row in shrunk],
        confidence=0.85,
        measured=pull,
        predicted=0.1,
    )


def lr_too_high(found: Examined) -> Finding | str | None:
    """UPD301: step 0 is sound, and the first updates ruin the model; a lower rate learns."""
    if found.run is None:
        return "there was no run"
    ratio = found.update_ratio
    if ratio is None:
        return "update ratios were not recorded"
    if not found.fails:
        return None
    better = found.better_rate(lower=True)
    ruined = found.outcome in ("non-finite", "diverged") or ratio > HIGH_UPDATE or _jumped(found)
    # Behind a warm-up the first update says nothing: that a lower rate learns where this one gets nowhere does.
    ruined = ruined or (better is not None and better[1] <= LEARNS and found.struggles)
    if not ruined or (better is None and ratio < HIGH_UPDATE and found.outcome != "non-finite"):
        return None
    if better is None and ratio < TOO_HIGH_ALONE and found.outcome not in ("non-finite", "diverged"):
        return None
    outcome = (
        f"the loss is not finite at step {found.run['nonfinite_step']}"
        if found.outcome == "non-finite"
        else f"the loss goes from {found.start_loss:.3g} to {found.final_loss:.3g}"
    )
    bracket = "" if better is None else f" At {better[0]:g} times the rate it learns."
    return report(
        "lr-too-high",
        f"At learning rate {_text(found.lr)} {outcome}: the first update changes weights by {ratio:.1e} of their size."
        + bracket,
        sites=list(found.update_ratios),
        confidence=0.9 if better is not None else 0.6,
        measured=ratio,
        predicted=1e-3,
        rivals=_sound(found),
    )


def _jumped(found: Examined) -> bool:
    """Whether the loss rose far above its start on the way."""
    known = found.losses[np.isfinite(found.losses)]
    start = max(found.start_loss, found.chance or -math.inf)
    return len(known) > 1 and float(known.max()) > 2 * start > 0


def lr_too_low(found: Examined) -> Finding | str | None:
    """UPD302: gradients are there, the updates are not."""
    if found.run is None:
        return "there was no run"
    ratios = found.update_ratios
    if not ratios:
        return "update ratios were not recorded"
    worst = max(ratios.values())
    if not found.fails or found.outcome in ("non-finite", "diverged") or worst == 0:
        return None
    better = found.better_rate(lower=False)
    if worst > LOW_UPDATE and (better is None or float(np.median(list(ratios.values()))) > 1e-4):
        return None
    bracket = "" if better is None else f" At {better[0]:g} times the rate it learns."
    return report(
        "lr-too-low",
        f"At learning rate {_text(found.lr)} an update changes weights by {worst:.1e} of their size at most: a weight "
        f"needs about {1 / worst:.0e} steps to change by its own size.{bracket}",
        sites=list(ratios),
        confidence=0.9 if better is not None else 0.7,
        measured=worst,
        predicted=1e-3,
        rivals=_sound(found),
    )


def loss_spike(found: Examined) -> Finding | str | None:
    """UPD304: a loss that was falling jumps."""
    if found.run is None or len(found.losses) < 20:
        return "there were fewer than 20 steps"
    for step in range(10, len(found.losses)):
        before = found.losses[max(0, step - 32) : step]
        if not np.isfinite(before).all() or not np.isfinite(found.losses[step]):
            return None
        spread = max(float(before.std()), 0.02 * abs(float(before.mean())))
        jump = (found.losses[step] - before.mean()) / spread
        # One that the run gets over is no harm done: it is back where it was on average.
        stays = not found.final_loss < before.mean()
        if jump > SPIKE and found.losses[step] > 1.5 * before.max() and found.fails and stays:
            return report(
                "loss-spike",
                f"The loss jumps from {before[-1]:.3g} to {found.losses[step]:.3g} at step {step}, {jump:.0f} standard "
                "deviations above the steps before.",
                confidence=0.6,
                measured=float(jump),
                predicted=SPIKE,
            )
    return None


def _sound(found: Examined) -> list[tuple[str, str]]:
    """What speaks against the other causes at step 0."""
    rivals = []
    if found.input is not None and 0.05 <= found.input["rms"] <= 10:
        rivals.append(("inputs-unscaled", f"the inputs have RMS {found.input['rms']:.2f}"))
    if found.chain is not None:
        rivals.append(("init-too-large", f"the weights predict a factor {found.chain.weight_rate:.2f} per layer"))
    return rivals


def _text(lr: float | None) -> str:
    return "unknown" if lr is None else f"{lr:g}"
