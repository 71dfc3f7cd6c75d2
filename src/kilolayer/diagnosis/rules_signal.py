"""SIG1xx: the forward signal. Inputs, initialisation, missing norms."""

from __future__ import annotations

import math

import numpy as np

from kilolayer.diagnosis.evidence import Evidence, known_median
from kilolayer.diagnosis.finding import Finding, Rival

LOW_RATE, HIGH_RATE = 0.85, 1.25
"""Outside these the RMS changes by more than a factor 10 within 15 blocks (0.85) or 11 (1.25)."""

LOW_GRADIENT_RATE = 0.75
"""A gradient that shrinks faster than this per block loses a factor 10 within 8."""

INPUT_RMS_RANGE = (0.05, 10.0)

MAX_STD_NOISE = 0.3
"""Relative error of a batch's std above which batch norm adds more noise than signal: fewer than 7 samples."""

GROWTH = 1.05
"""A stream with skips but no norm that grows faster per block than this is out of hand by a hundred blocks."""

MUCH_GROWTH = 10.0
"""Growth over all blocks at step 0 that a learning rate for unit signals does not survive."""

RUNAWAY = 3.0
"""Growth of the last block's RMS since step 0 that says the stream ran away."""


def inputs_unscaled(evidence: Evidence) -> Finding | str | None:
    """SIG104: the inputs' RMS is far from 1."""
    rms = evidence.recording.facts.get("input_rms")
    if rms is None:
        return "the inputs' RMS was not recorded"
    low, high = INPUT_RMS_RANGE
    if low <= rms <= high:
        return None
    site = next((s.name for s in evidence.recording.sites if s.kind == "input"), None)
    return Finding(
        code="SIG104",
        cause="inputs-unscaled",
        severity="error",
        confidence=0.9,
        first_site=site,
        last_site=site,
        measured=rms,
        predicted=1.0,
        formula="RMS of the inputs; standardized features have 1",
        message=f"The inputs have RMS {rms:.3g}; networks initialized for unit inputs expect about 1.",
        remedy="Standardize each feature with the training set's mean and standard deviation.",
        reference="LeCun et al. 1998, Efficient BackProp, section 4.3",
    )


def batchnorm_batch_too_small(evidence: Evidence) -> Finding | str | None:
    """SIG105: batch norms over a handful of samples normalize by noise."""
    if evidence.has_skip is None:
        return "no blocks in the site table"
    if evidence.norm_kind != "batch":
        return None
    size = evidence.recording.facts.get("batch_size")
    if size is None:
        return "the batch size was not recorded"
    noise = math.inf if size < 2 else (2 * (size - 1)) ** -0.5
    if noise <= MAX_STD_NOISE:
        return None
    first, last = evidence.stream[0], evidence.stream[-1]
    extreme = " With two samples every output is +1 or -1, whatever went in." if size == 2 else ""
    return Finding(
        code="SIG105",
        cause="batchnorm-batch-too-small",
        severity="error",
        confidence=0.8,
        first_site=first.name,
        last_site=last.name,
        measured=noise,
        predicted=MAX_STD_NOISE,
        formula="error of a std estimated from B samples: 1 / sqrt(2 (B - 1)), beside the most that is harmless",
        message=(
            f"Batch norm estimates each feature's mean and std from {size} samples: the std alone is off by "
            f"{100 * noise:.0f} % from batch to batch.{extreme}"
        ),
        remedy="Use LayerNorm or RMSNorm, which need one sample only, or batches of at least 16.",
        reference="Wu & He 2018, arXiv:1803.08494, section 1",
        rivals=rate_free_rivals(evidence),
    )


def init_too_small(evidence: Evidence) -> Finding | str | None:
    """SIG101: without skip and norm, each block shrinks the signal."""
    return _chain_rate(evidence, "SIG101", "init-too-small")


def init_too_large(evidence: Evidence) -> Finding | str | None:
    """SIG102: without skip and norm, each block blows the signal up."""
    return _chain_rate(evidence, "SIG102", "init-too-large")


def _chain_rate(evidence: Evidence, code: str, cause: str) -> Finding | str | None:
    if evidence.has_skip is None:
        return "no blocks in the site table"
    rate = evidence.forward_rate(0)
    if rate is None:
        return "the activations' RMS at step 0 was not recorded"
    small = cause == "init-too-small"
    if evidence.dead_block is not None:
        return None  # the signal was cut off, not scaled down
    predicted = math.sqrt(known_median(evidence.branch_gains))
    backward = evidence.backward_rate(0)
    # Biases keep up the size of a signal that the weights shrink; the gradient shows what they do.
    hidden = backward is not None and backward < LOW_GRADIENT_RATE and predicted < LOW_RATE
    shrinks = rate < LOW_RATE or hidden
    if evidence.has_skip or evidence.placements or (not shrinks if small else rate <= HIGH_RATE):
        return None
    first, last = evidence.stream[0], evidence.stream[-1]
    left = evidence.stream_rms(0)[-1]
    gradient = "" if backward is None else f" The gradient shrinks on its way down alike, {backward:.3f}x per block."
    return Finding(
        code=code,
        cause=cause,
        severity="error",
        confidence=0.95,
        first_site=first.name,
        last_site=last.name,
        measured=rate,
        predicted=predicted,
        formula="RMS factor per block = sqrt(fan_in * weight std^2 / 2) behind a ReLU",
        message=(
            f"Each block multiplies the signal's RMS by {rate:.3f} at step 0; its weights predict {predicted:.3f}, "
            f"and 1 would keep it. Block {evidence.num_blocks} is left with RMS {left:.1e}."
            + (gradient if small else "")
        ),
        remedy=(
            "Initialize the blocks' weights with std sqrt(2 / fan_in) (He); that repairs step 0. "
            "At this depth add skips and norms as well (pre-LN)."
        ),
        reference="He et al. 2015, arXiv:1502.01852, eq. 10",
        rivals=(
            *rate_free_rivals(evidence),
            Rival("saturated-units", "ReLU does not saturate; the factor per block is the weights' own"),
        ),
        evidence=(evidence.row(first, "activation", "rms", 0), evidence.row(last, "activation", "rms", 0)),
    )


def norm_missing(evidence: Evidence) -> Finding | str | None:
    """SIG103: with skips and no norm, the stream grows, at once or as soon as training starts."""
    if evidence.has_skip is None:
        return "no blocks in the site table"
    if not evidence.has_skip or evidence.placements:
        return None
    rate = evidence.forward_rate(0)
    if rate is None:
        return "the activations' RMS at step 0 was not recorded"
    predicted = math.sqrt(1 + known_median(evidence.branch_gains))
    if rate > GROWTH and (rate**evidence.num_blocks > MUCH_GROWTH or evidence.nonfinite_step is not None):
        return _norm_missing(evidence, 0, rate, predicted)
    worst_step, growth = _worst_growth(evidence)
    if growth < RUNAWAY and evidence.nonfinite_step is None:
        return None
    return _norm_missing(evidence, worst_step, evidence.forward_rate(worst_step) or math.inf, predicted)


def _worst_growth(evidence: Evidence) -> tuple[int, float]:
    """The sampled step at which the last block's RMS had grown most since step 0, and by what factor.

    A step at which every number is still finite is preferred: it shows the rate.
    """
    steps, values = evidence.recording.series(evidence.stream[-1].name, "activation", "rms")
    factors = values / values[0]
    finite = np.flatnonzero(np.isfinite(factors))
    worst = int(finite[np.argmax(factors[finite])])
    if factors[worst] < RUNAWAY and len(finite) < len(factors):
        worst = int(np.flatnonzero(~np.isfinite(factors))[0])
        return int(steps[worst]), math.inf
    return int(steps[worst]), float(factors[worst])


def _norm_missing(evidence: Evidence, step: int, rate: float, predicted: float) -> Finding:
    first, last = evidence.stream[0], evidence.stream[-1]
    start, end = evidence.stream_rms(step)[[0, -1]]
    if step == 0:
        message = (
            f"Nothing normalizes what the skips add up: the stream's RMS grows {rate:.3f}x per block "
            f"({predicted:.3f} predicted from the branches' weights), from {start:.3g} at block 1 to {end:.3g} at "
            f"block {evidence.num_blocks}."
        )
    else:
        start_rate = evidence.forward_rate(0) or math.nan
        now = "overflows" if math.isinf(rate) else f"grows {rate:.3f}x per block ({start:.3g} to {end:.3g})"
        message = (
            f"Nothing normalizes what the skips add up: at step {step} the stream {now}. It does not show at step 0, "
            f"where the stream grows {start_rate:.3f}x per block, as its scaled branches predict ({predicted:.3f}); "
            "but a branch is homogeneous, so once training enlarges its weights the growth compounds."
        )
    return Finding(
        code="SIG103",
        cause="norm-missing",
        severity="error",
        confidence=0.95 if step == 0 else 0.9,
        first_site=first.name,
        last_site=last.name,
        measured=rate,
        predicted=predicted,
        formula="RMS factor per block = sqrt(1 + branch gain), branch gain = product of fan_in * std^2 / 2 per ReLU",
        message=message,
        remedy=(
            "Normalize each branch's input and end with a final norm (pre-LN); "
            "scaling the branches' last matrix by 1/sqrt(2L) alone mends only step 0."
        ),
        reference="Zhang et al. 2019 (Fixup), arXiv:1901.09321, section 2; De & Smith 2020, arXiv:2002.10444",
        rivals=rate_free_rivals(evidence),
        evidence=(evidence.row(first, "activation", "rms", step), evidence.row(last, "activation", "rms", step)),
    )


def rate_free_rivals(evidence: Evidence) -> tuple[Rival, ...]:
    """The rivals every structural cause has, each with the number that rules it out where it does."""
    rivals = []
    rms = evidence.recording.facts.get("input_rms")
    if rms is not None and INPUT_RMS_RANGE[0] <= rms <= INPUT_RMS_RANGE[1]:
        rivals.append(Rival("inputs-unscaled", f"the inputs have RMS {rms:.2f}"))
    ratio = evidence.update_ratio(0)
    if ratio is not None and ratio < 0.05:
        rivals.append(Rival("lr-too-high", f"the first update changes weights by {ratio:.1e} of their norm"))
    return tuple(rivals)
