"""DEP6xx: depth and scheme. Missing skips, norms on the trunk without a larger skip."""

from __future__ import annotations

import math

import numpy as np

from kilolayer.diagnosis.evidence import Evidence, known_max, known_median
from kilolayer.diagnosis.finding import Finding, Rival
from kilolayer.diagnosis.rules_signal import HIGH_RATE, LOW_RATE, rate_free_rivals
from kilolayer.theory import relu_cosine_after

MIN_BLOCKS = 8
"""Below this many blocks a chain without skip trains in practice, and depth is not the cause to name."""

BATCHNORM_RATE = math.sqrt(math.pi / (math.pi - 1))
GROWING_GRADIENT = 1.12
"""A gradient that grows faster than this per block gains a factor 10 within 20 blocks."""

ALIKE = 0.85
"""Mean cosine between samples above which the last block hardly tells them apart."""

LOST_IDENTITY = 0.1
"""A gradient that keeps less than this on its way down the skips reaches the bottom only through the branches."""


def skip_missing(evidence: Evidence) -> Finding | str | None:
    """DEP602: many blocks in a row, none with a skip, initialised so that the signal's size survives."""
    if evidence.has_skip is None:
        return "no blocks in the site table"
    if evidence.has_skip or evidence.num_blocks < MIN_BLOCKS or evidence.norm_kind == "batch":
        return None
    rate = evidence.forward_rate(0)
    if rate is None or not evidence.recording.has("activation", "sample_cosine"):
        return "the activations' RMS and sample cosine at step 0 were not recorded"
    if not LOW_RATE < rate < HIGH_RATE:
        return None
    cosine = evidence.sample_cosine(0)
    if not abs(cosine[0]) <= 1:
        return "the first block's samples had no cosine at step 0"
    predicted = relu_cosine_after(float(cosine[0]), evidence.num_blocks - 1)
    seen = [evidence.sample_cosine(int(step))[-1:] for step in evidence.sampled_steps]
    if not known_max(np.concatenate([*seen, [predicted]])) >= ALIKE:
        return None
    first, last = evidence.stream[0], evidence.stream[-1]
    low, high = _spread(evidence.weight_grads(0))
    norm = "" if not evidence.placements else " The norms keep the signal's size, which is not what is missing."
    return Finding(
        code="DEP602",
        cause="skip-missing",
        severity="error",
        confidence=0.9 if evidence.num_blocks >= 32 else 0.75,
        first_site=first.name,
        last_site=last.name,
        measured=float(cosine[-1]),
        predicted=predicted,
        formula="mean sample cosine after L ReLU blocks: c -> (sqrt(1 - c^2) + (pi - arccos c) c) / pi, L times",
        message=(
            f"{evidence.num_blocks} blocks in a row and no skip: at the last one different samples have cosine "
            f"{cosine[-1]:.3f} at step 0 ({predicted:.3f} predicted), so little of the input is left to learn from, "
            f"and weight gradients range from {low:.2g} to {high:.2g} from block to block.{norm}"
        ),
        remedy="Give each block a skip around a normalized branch (pre-LN); initialization alone cannot replace it.",
        reference="He et al. 2015, arXiv:1512.03385, section 3; Schoenholz et al. 2017, arXiv:1611.01232, section 4",
        rivals=(
            Rival("init-too-small", f"the signal's RMS changes by {rate:.3f}x per block, close to 1"),
            *rate_free_rivals(evidence),
        ),
        evidence=(
            evidence.row(first, "activation", "sample_cosine", 0),
            evidence.row(last, "activation", "sample_cosine", 0),
        ),
    )


def batchnorm_without_skip(evidence: Evidence) -> Finding | str | None:
    """GRD201: batch norms in a chain without skips make the gradient grow towards the input."""
    if evidence.has_skip is None:
        return "no blocks in the site table"
    if evidence.has_skip or evidence.norm_kind != "batch" or evidence.num_blocks < MIN_BLOCKS:
        return None
    rate = evidence.backward_rate(0) or evidence.weight_grad_rate(0)
    if rate is None:
        return "gradients at step 0 were not recorded"
    if rate < GROWING_GRADIENT:
        return None
    first, last = evidence.stream[0], evidence.stream[-1]
    bottom, top = evidence.weight_grads(0)[[0, -1]]
    return Finding(
        code="GRD201",
        cause="batchnorm-without-skip",
        severity="error",
        confidence=0.9,
        first_site=first.name,
        last_site=last.name,
        measured=rate,
        predicted=BATCHNORM_RATE,
        formula="gradient RMS factor per block, towards the input: sqrt(pi / (pi - 1)) for ReLU and batch norm",
        message=(
            f"{evidence.num_blocks} batch norms in a row without a skip: the gradient grows {rate:.3f}x per block on "
            f"its way down ({BATCHNORM_RATE:.2f} predicted), from {top:.2g} in the weights of block "
            f"{evidence.num_blocks} to {bottom:.2g} in those of block 1. No initialization changes that."
        ),
        remedy="Give each block a skip around the normalized branch, as residual networks do.",
        reference="Yang et al. 2019, arXiv:1902.08129, theorem 3.9",
        rivals=(
            Rival(
                "init-too-large", f"the signal's RMS changes by {evidence.forward_rate(0) or math.nan:.3f}x per block"
            ),
            *rate_free_rivals(evidence),
        ),
        evidence=tuple(
            evidence.row(site, "param_grad", "l2_norm", 0) for site in (evidence.weights[0], evidence.weights[-1])
        ),
    )


def post_norm_too_deep(evidence: Evidence) -> Finding | str | None:
    """DEP601: a norm after every sum, and a skip too weak for this depth."""
    if evidence.has_skip is None:
        return "no blocks in the site table"
    if not evidence.has_skip or "post" not in evidence.placements or "pre" in evidence.placements:
        return None
    share = evidence.identity_share(0)
    if share is None:
        return "the residual sums' RMS at step 0 was not recorded"
    kept = share**evidence.num_blocks
    if kept > LOST_IDENTITY:
        return None
    alpha = known_median(evidence.skip_scales)
    predicted = alpha / math.sqrt(alpha**2 + known_median(evidence.branch_gains))
    step, starved = _starved(evidence)
    bottom, top = evidence.weight_grads(step)[[0, -1]]
    cosine = float(evidence.sample_cosine(step)[-1])
    alike = "" if math.isnan(cosine) else f", samples at the last block have cosine {cosine:.3f}"
    return Finding(
        code="DEP601",
        cause="post-norm-too-deep",
        severity="error",
        confidence=0.9 if evidence.num_blocks >= 32 else 0.75,
        first_site=evidence.stream[starved[0]].name,
        last_site=evidence.stream[starved[-1]].name,
        measured=share,
        predicted=predicted,
        formula="share of the skip in the norm's input, per block: alpha / sqrt(alpha^2 + branch gain)",
        message=(
            f"The norm after each sum leaves the skip {share:.3f} of its size per block ({predicted:.3f} predicted), "
            f"{kept:.0e} over {evidence.num_blocks} blocks: the identity path is lost. At step {step} the weight "
            f"gradient is {bottom:.2g} at block 1 and {top:.2g} at block {evidence.num_blocks}{alike}."
        ),
        remedy=(
            "Move the norm into the branch (pre-LN with a final norm), or keep it and use DeepNorm "
            f"(skip scale {evidence.num_blocks**0.25:.2f}, init gain {(4 * evidence.num_blocks) ** -0.25:.2f} here); "
            "a warm-up helps at moderate depth."
        ),
        reference="Xiong et al. 2020, arXiv:2002.04745; Wang et al. 2022, arXiv:2203.00555",
        rivals=(
            Rival("init-wrong", f"the signal's RMS changes by {evidence.forward_rate(0) or math.nan:.3f}x per block"),
            *rate_free_rivals(evidence),
        ),
        evidence=tuple(
            evidence.row(site, "param_grad", "l2_norm", step) for site in (evidence.weights[0], evidence.weights[-1])
        ),
    )


def _starved(evidence: Evidence) -> tuple[int, np.ndarray]:
    """The sampled step at which the bottom's gradient is smallest beside the top's, and the blocks below half of it."""
    best_step, best_ratio = 0, math.inf
    for step in evidence.sampled_steps:
        grads = evidence.weight_grads(int(step))
        ratio = grads[0] / grads[-1] if grads[-1] > 0 else math.inf
        if ratio < best_ratio:
            best_step, best_ratio = int(step), float(ratio)
    grads = evidence.weight_grads(best_step)
    starved = np.flatnonzero(grads < 0.5 * grads[-1])
    return best_step, starved if len(starved) else np.arange(evidence.num_blocks)


def _spread(values: np.ndarray) -> tuple[float, float]:
    finite = values[np.isfinite(values)]
    return (float(finite.min()), float(finite.max())) if len(finite) else (math.nan, math.nan)
