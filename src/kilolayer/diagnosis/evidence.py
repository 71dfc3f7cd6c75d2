"""The numbers rules reason with, computed once from a recording.

Every number is ``None`` or empty where the recording does not hold what it needs: a rule then says *not
evaluated*, never *passed*. Nothing here knows names, shapes or seeds of particular models: only the site
table's facts (skip, norms, activation) and the measurements.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np

from kilolayer.recording import Recording, Site

TRAINS_ACCURACY = 0.8
TRAINS_LOSS_SHARE = 0.5
"""Without a test accuracy, a run trains when its loss falls to half of where it began."""

BLOWN_UP = 100.0
"""Growth of the stream over all blocks at step 0 that makes the first loss no measure of anything."""


class Evidence:
    """What a recording says, in the terms of the rules."""

    def __init__(self, recording: Recording):
        self.recording = recording
        self.stream: tuple[Site, ...] = recording.stream()
        self.weights: tuple[Site, ...] = recording.weights()

    # ------------------------------------------------------------------ what the model is
    @property
    def num_blocks(self) -> int:
        """Blocks along the depth."""
        return len(self.stream)

    @cached_property
    def has_skip(self) -> bool | None:
        """Whether blocks carry their input past the branch; ``None`` without a stream."""
        return any(site.skip_scale is not None for site in self.stream) if self.stream else None

    @cached_property
    def placements(self) -> frozenset[str]:
        """Every place at which a block has a norm."""
        return frozenset(p for s in self.stream for p in s.norm_placement.split("+") if p != "none")

    @cached_property
    def norm_kind(self) -> str | None:
        """Kind of the blocks' norms."""
        return next((site.norm_kind for site in self.stream if site.norm_kind), None)

    # ------------------------------------------------------------------ how it went
    @cached_property
    def losses(self) -> tuple[np.ndarray, np.ndarray]:
        """Steps and losses."""
        return self.recording.series("run", "run", "loss")

    @cached_property
    def nonfinite_step(self) -> int | None:
        """First step whose loss was not finite."""
        steps, losses = self.losses
        bad = np.flatnonzero(~np.isfinite(losses))
        return int(steps[bad[0]]) if len(bad) else None

    @cached_property
    def initial_loss(self) -> float | None:
        """Loss at step 0."""
        _, losses = self.losses
        return float(losses[0]) if len(losses) else None

    @cached_property
    def final_loss(self) -> float | None:
        """Mean loss of the last ten steps; NaN if one was not finite."""
        _, losses = self.losses
        return float(np.mean(losses[-10:])) if len(losses) else None

    @cached_property
    def chance_loss(self) -> float | None:
        """Cross-entropy of knowing nothing, ln C, for a classifier."""
        classes = self.recording.facts.get("num_classes")
        return math.log(classes) if classes and self.recording.facts.get("loss") == "cross-entropy" else None

    @cached_property
    def accuracy(self) -> float | None:
        """Test accuracy at the end, where one was measured."""
        _, values = self.recording.series("run", "run", "test_accuracy")
        return float(values[-1]) if len(values) else None

    @cached_property
    def trains(self) -> bool | None:
        """Whether the run reached what it was for; ``None`` for a recording of step 0 alone."""
        if self.nonfinite_step is not None:
            return False
        if self.accuracy is not None:
            return self.accuracy >= TRAINS_ACCURACY
        if self.initial_loss is None or len(self.losses[0]) < 2 or self.final_loss is None:
            return None
        start = min(self.initial_loss, self.chance_loss or math.inf)
        if self.chance_loss is None and self._starts_blown_up:
            # Down from a start far above all reason is no learning; from soon behind it, it is.
            start = min(start, float(self.losses[1][len(self.losses[1]) // 10]))
        return self.final_loss <= TRAINS_LOSS_SHARE * start

    @cached_property
    def _starts_blown_up(self) -> bool:
        """Whether the stream grows beyond all measure at step 0, and the loss of it with it."""
        rate = self.forward_rate(0)
        return rate is not None and rate ** max(self.num_blocks - 1, 1) > BLOWN_UP

    # ------------------------------------------------------------------ along the depth
    @cached_property
    def sampled_steps(self) -> np.ndarray:
        """Steps at which activations were recorded."""
        return self.recording.steps("activation", "rms")

    def stream_rms(self, step: int) -> np.ndarray:
        """RMS at each block, ``(num_blocks,)``."""
        return self.recording.curve("activation", "rms", self.stream, step)

    def forward_rate(self, step: int = 0) -> float | None:
        """Factor per block of the stream's RMS (geometric mean); infinite once a block overflows.

        Blocks from which on the stream is exactly 0, cut off or below the smallest float, do not count.
        """
        curve = self.stream_rms(step)
        if len(curve) < 2 or np.isnan(curve[0]) or curve[0] == 0:
            return None
        if not np.isfinite(curve).all():
            return math.inf
        last = int(np.flatnonzero(curve)[-1])
        return _per_block(curve[last] / curve[0], last) if last else 0.0

    def backward_rate(self, step: int = 0) -> float | None:
        """Factor per block, towards the input, of the RMS of the loss gradient at the stream."""
        curve = self.recording.curve("activation_grad", "rms", self.stream, step)
        if len(curve) < 2 or not np.isfinite(curve[[0, -1]]).all() or curve[-1] == 0:
            return None
        return _per_block(curve[0] / curve[-1], len(curve) - 1)

    def sample_cosine(self, step: int = 0) -> np.ndarray:
        """Mean cosine between samples at each block."""
        return self.recording.curve("activation", "sample_cosine", self.stream, step)

    def weight_grads(self, step: int) -> np.ndarray:
        """Norm of each block's weight gradients together, ``(num_blocks,)``."""
        values = self.recording.curve("param_grad", "l2_norm", self.weights, step)
        blocks = np.array([site.block_index for site in self.weights])
        squares = np.array([np.sum(values[blocks == index] ** 2) for index in range(self.num_blocks)])
        return np.sqrt(squares)

    def weight_grad_rate(self, step: int = 0) -> float | None:
        """Factor per block, towards the input, of the weight gradients' norm."""
        grads = self.weight_grads(step)
        if len(grads) < 2 or not np.isfinite(grads[[0, -1]]).all() or grads[-1] == 0:
            return None
        return _per_block(grads[0] / grads[-1], len(grads) - 1)

    def update_ratio(self, step: int = 0) -> float | None:
        """Median update ratio of the weight matrices inside the blocks."""
        values = self.recording.curve("update", "update_ratio", self.weights, step)
        finite = values[np.isfinite(values)]
        return float(np.median(finite)) if len(finite) else None

    # ------------------------------------------------------------------ what the weights predict
    @cached_property
    def weight_gains(self) -> np.ndarray:
        """``fan_in * std^2`` of every block's matrices at step 0, ``(num_blocks, matrices per block)``."""
        norms = self.recording.curve("param", "l2_norm", self.weights, 0)
        gains = []
        for index in range(self.num_blocks):
            gains.append(
                [
                    norm**2 / site.shape[0]
                    for site, norm in zip(self.weights, norms, strict=True)
                    if site.block_index == index and site.shape is not None
                ]
            )
        widest = max((len(row) for row in gains), default=0)
        return np.array([row + [math.nan] * (widest - len(row)) for row in gains]).reshape(len(gains), widest)

    @cached_property
    def branch_gains(self) -> np.ndarray:
        """Second moment a block's branch puts out per unit of what goes in, from its weights at step 0.

        Each ReLU between two matrices halves it: the product of the matrices' gains over 2 per ReLU.
        """
        gains = self.weight_gains
        if gains.size == 0:
            return np.full(self.num_blocks, math.nan)
        scales = np.array([s.branch_scale if isinstance(s.branch_scale, float) else 1.0 for s in self.stream])
        relus = gains.shape[1] - 1 if self.has_skip else gains.shape[1]
        return np.nanprod(gains, axis=1) * 0.5**relus * scales**2

    @cached_property
    def skip_scales(self) -> np.ndarray:
        """Each block's skip scale; NaN where there is no skip or it is learned."""
        return np.array([s.skip_scale if isinstance(s.skip_scale, (int, float)) else math.nan for s in self.stream])

    def identity_share(self, step: int = 0) -> float | None:
        """How much of a norm's input is the skip: geometric mean over blocks of RMS(skip) / RMS(sum).

        A gradient that goes down the skips alone is multiplied by this at every norm after a sum.
        """
        sums = [site for site in self.recording.sites if site.kind == "sum" and not site.stream]
        if len(sums) != self.num_blocks or self.num_blocks < 2:
            return None
        skip = self.stream_rms(step)[:-1] * self.skip_scales[1:]
        total = self.recording.curve("activation", "rms", sums, step)[1:]
        share = skip / total
        return float(np.exp(np.mean(np.log(share)))) if np.isfinite(share).all() and (share > 0).all() else None

    # ------------------------------------------------------------------ units that are off
    @cached_property
    def block_outputs(self) -> tuple[Site, ...]:
        """What each block's matrices put out before a norm or a sum; empty where a block has no such site."""
        kinds = ("branch",) if self.has_skip else ("linear", "branch", "sum", "output")
        first: dict[int | None, Site] = {}
        for site in self.recording.sites:
            if site.kind in kinds:
                first.setdefault(site.block_index, site)
        found = [first.get(site.block_index) for site in self.stream]
        return tuple(site for site in found if site is not None) if None not in found else ()

    def rms_before(self, block: int) -> float:
        """RMS at step 0 of what goes into a block: the stream, and for the first what stands before the blocks."""
        if block:
            return float(self.stream_rms(0)[block - 1])
        first = self.stream[0].order
        sites = sorted(self.recording.sites, key=lambda site: site.order)
        before = [site for site in sites if site.block_index is None and site.order < first]
        values = self.recording.curve("activation", "rms", before)
        return float(next((value for value in values[::-1] if not math.isnan(value)), math.nan))

    @cached_property
    def dead_block(self) -> int | None:
        """The first block whose output is exactly 0 for the whole batch at step 0 because its units are off.

        With skips all branches must be: one dead branch leaves a network that works. Zero weights, a signal that would
        be lost to underflow anyway, and a LayerNorm over one unit, which is always 0, are no dead units.
        """
        if not self.block_outputs:
            return None
        zeros = self.recording.curve("activation", "zero_fraction", self.block_outputs) == 1
        if not (zeros.all() if self.has_skip else zeros.any()):
            return None
        block = int(np.argmax(zeros))
        narrow = self.norm_kind == "layer" and any(site.shape and site.shape[1] == 1 for site in self.weights)
        gains = self.branch_gains if self.has_skip else self.branch_gains[block : block + 1]
        expected = self.rms_before(block) * math.sqrt(float(gains.min()))
        return block if not narrow and expected > float(np.finfo(np.float32).tiny) else None

    # ------------------------------------------------------------------ rows for a finding
    def row(self, site: Site | str, role: str, stat: str, step: int) -> dict[str, Any]:
        """One row of the recording, as evidence."""
        name = site if isinstance(site, str) else site.name
        steps, values = self.recording.series(name, role, stat)
        found = np.flatnonzero(steps == step)
        value = float(values[found[0]]) if len(found) else None
        return {
            "step": int(step),
            "site": name,
            "role": role,
            "stat": stat,
            "value": value if value is not None and math.isfinite(value) else None,
        }


def _per_block(ratio: float, num_steps: int) -> float:
    return float(ratio ** (1 / num_steps)) if ratio > 0 else 0.0


def known_median(values: np.ndarray) -> float:
    """Median of what is not NaN; NaN where everything is."""
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else math.nan


def known_max(values: np.ndarray) -> float:
    """Largest of what is not NaN; NaN where everything is."""
    known = values[~np.isnan(values)]
    return float(np.max(known)) if len(known) else math.nan
