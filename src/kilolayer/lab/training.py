"""The training of one run of a lab of depth: step by step, watched by branch, saved on the way, continued exactly."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kilolayer.lab.branches import branch_weights, grad_norms
from kilolayer.lab.depth_run import DepthRun
from kilolayer.lab.experiment import OnStep
from kilolayer.lab.memory import peak_memory_mib, reset_peak_memory
from kilolayer.lab.optimizers import build_optimizer
from kilolayer.train import warmup_factor

CHECKPOINT = "checkpoint.pt"
SAVE_EVERY_S = 300.0
LAST_STEPS = 20
"""Gradients by branch are reported as the mean over these."""

LossAt = Callable[[nn.Module, int], Tensor]
"""``loss_at(model, step)``: the loss on the batch of a step, which depends on nothing but the run and the step."""


class Training:
    """A run in progress: everything that a checkpoint holds.

    ``losses`` has one entry per step done; ``grads`` the gradient norm of every branch at each of them (a step
    whose loss is not finite is the last, and takes no optimizer step).
    """

    def __init__(self, model: nn.Module, run: DepthRun):
        self.model, self.run = model, run
        self.optimizer = build_optimizer(run.optimizer, model, run.lr)
        self.branches = branch_weights(model)
        self.losses: list[float] = []
        self.grads: list[list[float]] = []
        self.seconds = 0.0
        self.peak_mib = 0.0

    @property
    def is_over(self) -> bool:
        """All steps done, or a loss that is not finite."""
        return len(self.losses) >= self.run.num_steps or self.nonfinite_step is not None

    @property
    def nonfinite_step(self) -> int | None:
        """The first step whose loss was not finite."""
        return len(self.losses) - 1 if self.losses and not math.isfinite(self.losses[-1]) else None

    def take_step(self, loss_at: LossAt) -> None:
        """One batch: loss, gradients, optimizer."""
        started, step, run = time.perf_counter(), len(self.losses), self.run
        for group in self.optimizer.param_groups:
            group["lr"] = run.lr * warmup_factor(step, run.warmup_steps)
        self.optimizer.zero_grad()
        loss = loss_at(self.model, step)
        loss.backward()
        value, grads = loss.item(), grad_norms(self.branches).tolist()
        if math.isfinite(value):
            if run.clip is not None:
                nn.utils.clip_grad_norm_(self.model.parameters(), run.clip)
            self.optimizer.step()
        self.losses.append(value)
        self.grads.append(grads)
        self.seconds += time.perf_counter() - started

    def results(self) -> dict[str, Any]:
        """What every lab of depth reports: losses, gradients by branch at the first and over the last steps."""
        last = torch.tensor(self.grads[-LAST_STEPS:], dtype=torch.float64)
        return {
            "losses": self.losses,
            "grad_norm_by_branch": last.mean(0).tolist(),
            "grad_norm_by_branch_at_start": self.grads[0],
            "grad_norm_by_step": [[min(those), max(those)] for those in self.grads],
            "stacks": [branch.stack for branch in self.branches],
            "nonfinite_step": self.nonfinite_step,
            "seconds": self.seconds,
            "peak_memory_mib": max(self.peak_mib, peak_memory_mib()),
        }

    def save(self, folder: Path) -> None:
        """Everything, in one file that is there in full or not at all."""
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "losses": self.losses,
            "grads": torch.tensor(self.grads, dtype=torch.float64),
            "seconds": self.seconds,
            "peak_mib": max(self.peak_mib, peak_memory_mib()),
        }
        temporary = folder / f"{CHECKPOINT}.tmp"
        torch.save(state, temporary)
        os.replace(temporary, folder / CHECKPOINT)

    def load(self, folder: Path) -> None:
        """Go on from the folder's checkpoint, if it has one."""
        if not (folder / CHECKPOINT).is_file():
            return
        state = torch.load(folder / CHECKPOINT, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.losses, self.grads = state["losses"], state["grads"].tolist()
        self.seconds, self.peak_mib = state["seconds"], state["peak_mib"]


def train_run(model: nn.Module, run: DepthRun, loss_at: LossAt, *, folder: Path, on_step: OnStep) -> Training:
    """Train to the end, or go on to it; on ``KeyboardInterrupt`` from ``on_step`` what was done is saved first.

    Args:
        model: at its initial values.
        run: the settings.
        loss_at: loss of a step's batch.
        folder: for the checkpoint; it is still there at the end, so that what follows can be stopped too, and
            goes with :func:`remove_checkpoint`.
        on_step: called with the steps done.
    """
    reset_peak_memory()
    training = Training(model, run)
    training.load(folder)
    saved = time.monotonic()
    model.train()
    while not training.is_over:
        training.take_step(loss_at)
        try:
            on_step(len(training.losses))
        except KeyboardInterrupt:
            training.save(folder)
            raise
        if time.monotonic() - saved > SAVE_EVERY_S:
            training.save(folder)
            saved = time.monotonic()
    training.save(folder)
    return training


def remove_checkpoint(folder: Path) -> None:
    """When a run has all its results."""
    (folder / CHECKPOINT).unlink(missing_ok=True)
