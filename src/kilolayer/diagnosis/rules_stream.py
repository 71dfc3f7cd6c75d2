"""DEP6xx and their like: skips, norms and depth of any model."""

from __future__ import annotations

import math

import numpy as np

from kilolayer.diagnosis.cards import report
from kilolayer.diagnosis.chains import Chain, Row
from kilolayer.diagnosis.examined import Examined
from kilolayer.diagnosis.finding import Finding

MIN_LAYERS = 8
"""Below this many layers a chain without skip trains in practice, and depth is not the cause to name."""

ALIKE = 0.85
"""Mean cosine between samples above which the last layer hardly tells them apart."""

GROWING_GRADIENT = 1.12
BATCHNORM_RATE = math.sqrt(math.pi / (math.pi - 1))
MAX_STD_NOISE = 0.3
"""Relative error of a batch's std above which batch norm adds more noise than signal: fewer than 7 values."""

GROWTH = 1.05
MUCH_GROWTH = 10.0
LOST_IDENTITY = 0.1
"""A gradient that keeps less than this on its way down the skips reaches the bottom only through the branches."""

OFF = 1.25
"""Factor between a skip scale and that of its depth from which on it is another depth's: 1.25^4 = 2.4 times it."""

STARVED = 1e-3
COLLAPSED = 0.95
"""Mean cosine between samples at the end of a run from which on a stream tells them apart no more."""


def skip_broken(found: Examined) -> Finding | str | None:
    """DEP603: a signal is added to itself where a skip should be."""
    doubled = [row for row in found.step0["sums"] if row["is_doubled"]]
    if not doubled or found.outcome == "learns":
        return None
    return report(
        "skip-broken",
        f"{len(doubled)} sums add a signal to itself (x + x): what came in is not carried past the branch.",
        sites=[row["path"] for row in doubled],
        confidence=0.9,
        measured=float(len(doubled)),
        predicted=0.0,
    )


def alpha_misplaced(found: Examined) -> Finding | str | None:
    """DEP607: a factor above 1 on the branches, and none on the skips."""
    for rows in streams_of(found):
        scales = [row["branch_scale"] for row in rows]
        if any(row["is_learned"] or row["skip_scale"] is None for row in rows) or None in scales:
            continue
        skip, scale = _median([row["skip_scale"] for row in rows]), _median(scales)
        if abs(skip - 1) > 0.01 or scale < 1.05 or not found.fails:
            continue
        # One or two sums per layer: alpha is (2N)^(1/4) of an encoder with N layers of two.
        fits = [abs(scale / count**0.25 - 1) < 0.02 for count in (len(rows), 2 * len(rows))]
        rate = _growth_rate(rows)
        return report(
            "alpha-misplaced",
            f"Branches are multiplied by {scale:.3f}{', the alpha of this depth,' if any(fits) else ''} and skips by "
            f"1, so the branch outweighs the skip: the stream grows {rate:.3f}x per sum.",
            sites=[row["path"] for row in rows],
            confidence=0.95 if any(fits) else 0.7,
            measured=scale,
            predicted=1.0,
        )
    return None


def norm_missing(found: Examined) -> Finding | str | None:
    """SIG103: with skips and no norm the stream grows, at once or as soon as training starts."""
    for rows in streams_of(found):
        if any(row["norm_placement"] != "none" for row in rows) or not found.fails:
            continue
        rate, later = _growth_rate(rows), _growth_rate(later_of(found, rows))
        total = rate ** len(rows)
        if rate > GROWTH and total > MUCH_GROWTH:
            when = "at step 0"
        elif found.outcome in ("non-finite", "diverged") and (later ** len(rows) > MUCH_GROWTH or rate > GROWTH):
            when, rate = "once it trains", max(rate, later)
        else:
            continue
        ends = [row["sum_rms"] for row in rows]
        return report(
            "norm-missing",
            f"Nothing normalizes what {len(rows)} skips add up: the stream grows {rate:.3f}x per sum {when} "
            f"(RMS {ends[0]:.3g} at the first and {ends[-1]:.3g} at the last at step 0).",
            sites=[row["path"] for row in rows],
            confidence=0.9,
            measured=rate,
            predicted=1.0,
            rivals=rivals_of(found),
        )
    return None


def skip_attenuated(found: Examined) -> Finding | str | None:
    """DEP604: skips below 1 that no norm makes up for."""
    for rows in streams_of(found):
        scales = [row["skip_scale"] for row in rows]
        if None in scales or any("post" in row["norm_placement"] for row in rows) or not found.fails:
            continue
        left = float(np.prod(np.abs(scales)))
        if left > LOST_IDENTITY:
            continue
        return report(
            "skip-attenuated",
            f"Every skip is multiplied by {_median(scales):.3g}: {left:.0e} of the identity is left behind "
            f"{len(rows)} sums, and of the gradient that goes down it.",
            sites=[row["path"] for row in rows],
            confidence=0.9,
            measured=left,
            predicted=1.0,
            rivals=rivals_of(found),
        )
    return None


def post_norm_too_deep(found: Examined) -> Finding | str | None:
    """DEP601: a norm after every sum, and a skip too weak for this depth, at once or as soon as training starts."""
    for rows in streams_of(found):
        placed = [row for row in rows if "post" in row["norm_placement"] and "pre" not in row["norm_placement"]]
        if len(placed) < MIN_LAYERS or len(placed) < 0.8 * len(rows) or not found.fails:
            continue
        if (found.update_ratio or 0) > 0.1:
            continue
        share, when, seen = _share_of_all(placed), "", ""
        if share ** len(placed) > LOST_IDENTITY:
            later = later_of(found, placed)
            share, when, seen = _share_of_all(later), " once it trains", _collapse(found, later)
            if not seen:
                continue
        elif found.is_on_course and not found.struggles and not signs_of_collapse(later_of(found, placed)):
            continue  # it is getting there, and signal and gradient still arrive
        kept = share ** len(placed)
        if kept > LOST_IDENTITY:
            continue
        return report(
            "post-norm-too-deep",
            f"The norm after each sum leaves the skip {share:.3f} of its size{when}, {kept:.0e} over {len(placed)} "
            f"sums: the identity path is lost.{seen} The loss goes from {found.initial_loss:.3g} to "
            f"{found.final_loss:.3g}.",
            sites=[row["path"] for row in placed],
            confidence=0.9 if len(placed) >= 24 else 0.75,
            measured=share,
            predicted=1.0,
            rivals=rivals_of(found),
        )
    return None


def _share_of_all(rows: list[Row]) -> float:
    """Share of the skip in a sum, geometric mean over sums; 1 where there are none."""
    shares = [_share(row) for row in rows]
    if not shares:
        return 1.0
    return float(np.exp(np.mean(np.log(shares)))) if all(one > 0 for one in shares) else 0.0


def _collapse(found: Examined, rows: list[Row]) -> str:
    """What shows at the end of the run that the stream carries nothing; empty where nothing does.

    Branches grow in networks that train as well. A run that got somewhere must show both signs.
    """
    said = signs_of_collapse(rows)
    if not said or not (found.struggles or len(said) > 1):
        return ""
    text = " and ".join(said)
    return f" {text[0].upper()}{text[1:]} at the end of the run."


def signs_of_collapse(rows: list[Row]) -> list[str]:
    """Samples that became alike at the last sum, gradients that no longer reach the first ones."""
    quarter = max(len(rows) // 4, 1)
    grads = [row["branch_grad_rms"] for row in rows]
    first, last = ([one for one in part if one is not None] for part in (grads[:quarter], grads[-quarter:]))
    left = _median(first) / _median(last) if first and last and _median(last) > 0 else math.nan
    cosine = rows[-1]["cosine"] if rows else None
    said = []
    if cosine is not None and cosine >= COLLAPSED:
        said.append(f"different samples have cosine {cosine:.3f} at the last sum")
    if left < STARVED:
        said.append(f"the gradient of the first sums is {left:.0e} of that of the last")
    return said


def final_norm_missing(found: Examined) -> Finding | str | None:
    """DEP606: pre-norm without a norm behind the last block, and outputs as large as the stream has grown."""
    norms = found.structure["chain_norms"]
    for index, rows in enumerate(streams_of(found)):
        is_pre = sum("pre" in row["norm_placement"] and "post" not in row["norm_placement"] for row in rows)
        if len(rows) < 2 or is_pre < 0.8 * len(rows) or not found.fails or norms[_chain_index(found, index)]:
            continue
        first, last = rows[0]["skip_rms"], rows[-1]["sum_rms"]
        loud = found.chance is not None and found.initial_loss > 1.3 * found.chance
        if last is None or first is None or not (last > 1.5 * first or last > 2) or not (loud or found.fails_badly):
            continue
        return report(
            "final-norm-missing",
            f"No norm stands behind the last of {len(rows)} sums, each with its norm inside the branch: the output "
            f"layer reads a stream of RMS {last:.2g} (it began at {first:.2g}), and the loss starts at "
            f"{found.initial_loss:.3g}.",
            sites=[rows[-1]["path"]],
            confidence=0.85,
            measured=last,
            predicted=1.0,
            rivals=rivals_of(found),
        )
    return None


def alpha_wrong_for_depth(found: Examined) -> Finding | str | None:
    """DEP608: DeepNorm's skip scale is that of another depth."""
    for fit in found.structure["depth_fits"]:
        wanted = list(fit["expected"].values())
        if fit["rules"] or not wanted or fit["num_branches"] < 2:
            continue
        nearest = min(wanted, key=lambda one: abs(math.log(fit["skip_scale"] / one)))
        if max(fit["skip_scale"] / nearest, nearest / fit["skip_scale"]) < OFF:
            continue
        rows = found.branches_of(fit["chain"])
        other = f" It fits {fit['fitting_branches']} sums." if fit["fitting_branches"] else ""
        return report(
            "alpha-wrong-for-depth",
            f"The skip scale is {fit['skip_scale']:.3f}, and {fit['num_branches']} sums want {nearest:.3f}.{other}",
            sites=[row["path"] for row in rows],
            severity="error" if found.fails else "warning",
            confidence=0.85,
            measured=fit["skip_scale"],
            predicted=nearest,
        )
    return None


def stack_starved(found: Examined) -> Finding | str | None:
    """DEP611: one of several stacks gets next to no gradient while the loss is that of the other."""
    sizes = [_median([row["branch_grad_rms"] for row in rows if row["branch_grad_rms"] is not None])
             for rows in streams_of(found)]  # fmt: skip
    known = [one for one in sizes if one == one]
    if len(known) < 2 or max(known) <= 0 or min(known) > STARVED * max(known):
        return None
    rows = streams_of(found)[sizes.index(min(known))]
    return report(
        "stack-starved",
        f"The gradient in one stack of {len(rows)} sums is {min(known) / max(known):.0e} of that in another.",
        sites=[row["path"] for row in rows],
        severity="warning" if found.outcome != "learns" else "info",
        confidence=0.6,
        measured=min(known) / max(known),
        predicted=1.0,
    )


# ---------------------------------------------------------------------- chains without skips
def skip_missing(found: Examined) -> Finding | str | None:
    """DEP602: many layers in a row, none with a skip, and samples become alike though the signal keeps its size."""
    chain = found.chain
    if chain is None or len(chain) < MIN_LAYERS or len(chain) < len(found.branches) or not found.struggles:
        return None
    if chain.norms & {"batch"} or not (chain.cosine >= ALIKE or len(chain) >= 4 * MIN_LAYERS or _widens(chain)):
        return None
    return report(
        "skip-missing",
        f"{len(chain)} layers in a row and no skip: at the last one different samples have cosine {chain.cosine:.3f} "
        f"at step 0, so little of the input is left to learn from.",
        sites=chain.sites,
        confidence=0.9 if len(chain) >= 32 else 0.75,
        measured=chain.cosine,
        predicted=ALIKE,
        rivals=[
            ("init-too-small", f"the weights predict a factor {chain.weight_rate:.3f} per layer"),
            *rivals_of(found),
        ],
    )


def _widens(chain: Chain) -> bool:
    """Whether gradients differ by more than a factor 10 from layer to layer."""
    sizes = [row["grad_rms"] for row in chain.hidden if row["grad_rms"]]
    return bool(sizes) and max(sizes) > 10 * min(sizes)


def batchnorm_without_skip(found: Examined) -> Finding | str | None:
    """GRD201: batch norms in a row without skips make the gradient grow towards the input."""
    chain = found.chain
    if chain is None or "batch" not in chain.norms or len(chain) < MIN_LAYERS or not found.fails:
        return None
    rate = chain.backward_rate
    if not rate > GROWING_GRADIENT or rate ** len(chain) < MUCH_GROWTH:
        return None
    return report(
        "batchnorm-without-skip",
        f"{len(chain)} batch norms in a row without a skip: the gradient grows {rate:.3f}x per layer on its way down, "
        f"{rate ** len(chain):.0e} over all of them.",
        sites=chain.sites,
        measured=rate,
        predicted=BATCHNORM_RATE,
        rivals=rivals_of(found),
    )


def batchnorm_batch_too_small(found: Examined) -> Finding | str | None:
    """SIG105: batch norms over a handful of values normalize by noise."""
    rows = [row for row in found.layers if row["norm_after"] == "batch"]
    if not rows or not found.fails:
        return None
    values = min(row["numel"] // max(row["fan_out"], 1) for row in rows)
    noise = math.inf if values < 2 else (2 * (values - 1)) ** -0.5
    if noise <= MAX_STD_NOISE:
        return None
    return report(
        "batchnorm-batch-too-small",
        f"Batch norm estimates each feature's mean and std from {values} values: the std alone is off by "
        f"{100 * noise:.0f} % from batch to batch.",
        sites=[row["path"] for row in rows],
        confidence=0.8,
        measured=noise,
        predicted=MAX_STD_NOISE,
    )


# ---------------------------------------------------------------------- small things
def streams_of(found: Examined) -> list[list[Row]]:
    """The residual sums of each stream; parallel ones count, joins with older points do not."""
    chains = [found.branches_of(index) for index in range(len(found.structure["chains"]))]
    return [[row for row in rows if row["kind"] != "long"] for rows in chains if rows]


def _chain_index(found: Examined, stream: int) -> int:
    filled = [index for index, chain in enumerate(found.structure["chains"]) if chain]
    return filled[stream]


def later_of(found: Examined, rows: list[Row]) -> list[Row]:
    """The same sums at the end of the run."""
    if found.end is None:
        return []
    by_index = {row["index"]: row for row in found.end["branches"]}
    return [by_index[row["index"]] for row in rows if row["index"] in by_index]


def _growth_rate(rows: list[Row]) -> float:
    """Factor per sum of the stream's RMS; 1 where it is not known."""
    if len(rows) < 2 or not rows[0]["skip_rms"] or rows[-1]["sum_rms"] is None:
        return 1.0
    ratio = rows[-1]["sum_rms"] / rows[0]["skip_rms"]
    return float(ratio ** (1 / len(rows))) if ratio > 0 else 1.0


def _share(row: Row) -> float:
    """Share of the skip, times its factor, in a sum."""
    if not row["sum_rms"] or row["skip_rms"] is None:
        return 1.0
    scale = 1.0 if row["skip_scale"] is None else abs(row["skip_scale"])
    return min(float(scale * row["skip_rms"] / row["sum_rms"]), 1.0)


def _median(values: list[float]) -> float:
    return float(np.median(values)) if values else math.nan


def rivals_of(found: Examined) -> list[tuple[str, str]]:
    rivals = []
    if found.input is not None and 0.05 <= found.input["rms"] <= 10:
        rivals.append(("inputs-unscaled", f"the inputs have RMS {found.input['rms']:.2f}"))
    if found.update_ratio is not None and found.update_ratio < 0.05:
        rivals.append(("lr-too-high", f"the first update changes weights by {found.update_ratio:.1e} of their size"))
    return rivals
