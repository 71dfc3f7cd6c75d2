"""The loop: steps, spikes and what is done about them, checkpoints, evaluations."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from kilolayer.train.checkpoints import (
    Checkpoint,
    complete_checkpoints,
    keep_last,
    load_checkpoint,
    passed_over,
    remove_after,
    save_checkpoint,
    step_of,
)
from kilolayer.train.progress import TrainingProgress
from kilolayer.train.recipe import Recipe
from kilolayer.train.result import Outcome
from kilolayer.train.run_folder import CHECKPOINTS, append_event
from kilolayer.train.segments import RecordedSegments
from kilolayer.train.snapshots import put_snapshot, take_snapshot
from kilolayer.train.spike_watch import Alarm, SpikeWatch
from kilolayer.train.stepper import Reading, Stepper
from kilolayer.train.stopping import StopFlag

OnStep = Callable[[int], None]
"""Called with the steps done; raises ``KeyboardInterrupt`` when it is time to stop."""

MOST_SKIPS = 8
"""Steps skipped in a row, after which it is the level that has changed and not a batch that is bad."""

SKIPPED_BEHIND = 16
"""Batches behind a spike that a return to a checkpoint passes over too: bad data come in runs."""

MOST_RETURNS = 3
"""Returns to one checkpoint, after which other data will not help."""


@dataclass
class TrainingState:
    """The numbers of a run in progress that a checkpoint holds beside its tensors.

    Attributes:
        step: optimizer steps done.
        data_offset: batches passed over by returns to a checkpoint.
        returns: steps of the checkpoints that were returned to.
        skips_in_row: steps skipped up to here.
        loss_sum, loss_count: of the training losses since the last evaluation.
        evaluations: so far.
    """

    step: int = 0
    data_offset: int = 0
    returns: list[int] = field(default_factory=list)
    skips_in_row: int = 0
    num_tokens: int = 0
    seconds: float = 0.0
    loss_sum: float = 0.0
    loss_count: int = 0
    evaluations: list[dict[str, float]] = field(default_factory=list)


class Trainer:
    """A run from its checkpoint, or its start, to its end.

    Args:
        recipe: the settings.
        task: batches, predictions, held-out data.
        stepper: model and optimizer.
        folder: of the run.
        progress: the bar.
    """

    def __init__(self, recipe: Recipe, task: Any, stepper: Stepper, *, folder: Path, progress: TrainingProgress):
        self.recipe, self.task, self.stepper = recipe, task, stepper
        self.folder, self.root, self.progress = folder, folder / CHECKPOINTS, progress
        self.is_main: bool = stepper.accelerator.is_main_process
        self.state = TrainingState()
        self.watch = SpikeWatch(stepper.weight_names)
        self.segments = RecordedSegments(folder, every=recipe.monitor_every, writes=self.is_main)
        self.verdict: str | None = None

    # ------------------------------------------------------------------ the loop
    def run(self, stop: StopFlag, on_step: OnStep = lambda step: None) -> Outcome:
        """Take the steps that are missing; how it ended, see :class:`Result`."""
        self._go_on()
        outcome: Outcome = "trained"
        while self.state.step < self.recipe.steps:
            if self._is_anyone_stopped(stop):
                outcome = "stopped"
                break
            if (failure := self._take_step()) is not None:
                self.segments.end(self.state.step + 1)
                return failure
            try:
                on_step(self.state.step)
            except KeyboardInterrupt:
                stop.is_set = True
            if self.state.step % self.recipe.eval_every == 0:
                self._evaluate()
            if self.state.step % self.recipe.save_every == 0:
                self.save()
        self.save()
        self.segments.abandon()
        return outcome

    def _is_anyone_stopped(self, stop: StopFlag) -> bool:
        """Processes get a signal at different steps; they have to stop at the same one."""
        accelerator = self.stepper.accelerator
        if accelerator.num_processes == 1:
            return bool(stop)
        return bool(accelerator.reduce(torch.tensor(float(bool(stop)), device=accelerator.device), "sum") > 0)

    def _go_on(self) -> None:
        """From the newest complete checkpoint, or from the start, which is saved too: there is always a way back."""
        found, damaged = complete_checkpoints(self.root), passed_over(self.root)
        if damaged and self.is_main:
            start = found[-1].name if found else "the start"
            self.progress.say(f"{damaged[-1]} lacks a file or a byte and is passed over; the run goes on from {start}")
        self.stepper.accelerator.wait_for_everyone()  # all have looked before the first one writes
        if found:
            self._load(load_checkpoint(found[-1], self.recipe))
        self._watch_from_here()
        if not found:
            self.save()

    def _take_step(self) -> Outcome | None:
        """One step; how the run ends with it, if it does."""
        started, state = time.perf_counter(), self.state
        reading = self.stepper.measure(state.step, state.step + state.data_offset)
        if not math.isfinite(reading.loss):
            return self._end_nonfinite(reading)
        alarm = self.watch.look(
            state.step, reading.loss, reading.norms[self.stepper.is_weight], total=reading.grad_norm
        )
        if alarm is not None and self.recipe.on_spike == "rollback":
            return self._return(alarm)
        self.segments.log(loss=reading.loss, unclipped_grad_norm=reading.grad_norm)
        if self._is_to_be_skipped(alarm, reading):
            state.skips_in_row += 1
            self.segments.end_skipped_step()
        else:
            state.skips_in_row = 0
            if not self.stepper.update(state.step, reading):
                self.segments.end_skipped_step()
        self._count(reading, time.perf_counter() - started)
        return self._end_nonfinite(reading) if state.skips_in_row > MOST_SKIPS and not reading.is_finite else None

    def _count(self, reading: Reading, seconds: float) -> None:
        state = self.state
        state.step += 1
        state.num_tokens += reading.num_tokens
        state.seconds += seconds
        state.loss_sum += reading.loss
        state.loss_count += 1
        speed = reading.num_tokens / seconds
        self.progress.show(state.step, loss=reading.loss, norm=reading.grad_norm, speed=speed)
        if self.recipe.tracker is not None:
            values = {"loss": reading.loss, "grad_norm": reading.grad_norm, "tokens_per_s": speed}
            self.stepper.accelerator.log(values | {"lr": self.lr}, step=state.step)

    @property
    def lr(self) -> float:
        """The rate of the last step, of the first group."""
        return float(self.stepper.inner_optimizer.param_groups[0]["lr"])

    # ------------------------------------------------------------------ spikes
    def _is_to_be_skipped(self, alarm: Alarm | None, reading: Reading) -> bool:
        """A gradient that is not finite would ruin every weight; a spike is skipped if the recipe says so."""
        scales = self.stepper.accelerator.scaler is not None  # a scaler refuses such a step, and lowers its scale
        is_ruinous = not reading.is_finite and not scales
        is_spike = alarm is not None and (reading.is_finite or not scales)
        skips = is_ruinous or (is_spike and self.recipe.on_spike == "skip" and self.state.skips_in_row < MOST_SKIPS)
        if alarm is not None and is_spike:
            self._note("skipped" if skips else "spike", alarm)
        return skips

    def _return(self, alarm: Alarm) -> Outcome | None:
        """Back to the last checkpoint, and on with the data behind the spike."""
        before = self.state
        checkpoint = load_checkpoint(complete_checkpoints(self.root)[-1], self.recipe)
        step = int(checkpoint.state["step"])
        if before.returns.count(step) >= MOST_RETURNS:
            self.verdict = f"{alarm}; {MOST_RETURNS} returns to step {step} with other data did not help"
            return "unstable"
        self._note("returned", alarm, to=step)
        self._load(checkpoint)
        self.state.data_offset = before.data_offset + before.step - step + 1 + SKIPPED_BEHIND
        self.state.returns = [*before.returns, step]
        self._watch_from_here()
        return None

    def _end_nonfinite(self, reading: Reading) -> Outcome:
        """The sentence of a run whose loss, or whose gradient again and again, is not finite."""
        state = self.state
        what = "loss" if not math.isfinite(reading.loss) else "gradient"
        self.watch.look(state.step, reading.loss, reading.norms[self.stepper.is_weight], total=reading.grad_norm)
        site = self.watch.trace(state.step).first_site
        first = f"the gradient of {site} left its range first; " if site else ""
        found = complete_checkpoints(self.root)
        kept = f"the checkpoint of step {step_of(found[-1])} is intact" if found else "no checkpoint is there"
        self.verdict = f"The {what} is not finite at step {state.step}; {first}{kept}."
        self.segments.log(loss=reading.loss, unclipped_grad_norm=reading.grad_norm)
        self.segments.end_skipped_step()
        return "non-finite"

    def _note(self, kind: str, alarm: Alarm, **more: Any) -> None:
        if self.is_main:
            append_event(self.folder, {"event": kind} | dataclasses.asdict(alarm) | more)
            self.progress.say(f"{kind}: {alarm}")

    # ------------------------------------------------------------------ evaluations and checkpoints
    def _evaluate(self) -> None:
        state = self.state
        loss = self.stepper.held_out_loss(self.task.held_out_pieces(is_final=False))
        mean = state.loss_sum / max(state.loss_count, 1)
        state.evaluations.append({"step": state.step, "train_loss": mean, "loss": loss})
        state.loss_sum, state.loss_count = 0.0, 0
        if self.recipe.tracker is not None:
            self.stepper.accelerator.log({"held_out_loss": loss}, step=state.step)

    def save(self) -> None:
        """A checkpoint of where the run is, unless a weight is not finite: such a one would be no way back."""
        self.segments.end(self.state.step)
        if self.stepper.weights_are_finite():
            files = take_snapshot(self.stepper)
            if self.is_main:
                self._write(files)
            self.stepper.accelerator.wait_for_everyone()
        self._watch_from_here()

    def _write(self, files: dict[str, Any]) -> None:
        scaler = self.stepper.accelerator.scaler
        state = dataclasses.asdict(self.state) | {"scaler": None if scaler is None else scaler.state_dict()}
        files = files | {"watch": self.watch.state()}
        save_checkpoint(self.root, self.state.step, recipe=self.recipe, state=state, tensors=files)
        keep_last(self.root, self.recipe.keep_last)

    def _load(self, checkpoint: Checkpoint) -> None:
        put_snapshot(self.stepper, checkpoint.tensors)
        self.watch.load(checkpoint.tensors["watch"])
        names = {one.name for one in dataclasses.fields(TrainingState)}
        self.state = TrainingState(**{name: checkpoint.state[name] for name in names})
        if self.stepper.accelerator.scaler is not None and checkpoint.state["scaler"] is not None:
            self.stepper.accelerator.scaler.load_state_dict(checkpoint.state["scaler"])
        if self.is_main:
            remove_after(self.root, self.state.step)

    def _watch_from_here(self) -> None:
        if self.recipe.monitor_every:
            self.segments.begin(self.stepper, self.state.step)
