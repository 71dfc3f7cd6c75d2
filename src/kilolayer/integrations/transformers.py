"""The monitor in the Trainer of Hugging Face transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from kilolayer.integrations.loggers import MonitorLogger
from kilolayer.integrations.watched_run import WatchedRun, WatchOptions
from kilolayer.monitor import Monitor
from kilolayer.monitor.hook import Hook
from kilolayer.monitor.schedule import Schedule
from kilolayer.monitor.sites import Selection
from kilolayer.monitor.unwrap import is_compiled
from kilolayer.recording import Recording

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise ImportError("kilolayer.integrations.transformers needs transformers; pip install kilolayer[hf]") from error


class MonitorCallback(TrainerCallback):
    """Records what each layer does while a ``Trainer`` trains.

    Steps are those of the Trainer, through gradient accumulation, mixed precision and resuming; evaluations are not
    read. ``loss`` of each step is the model's own, as the Trainer sums it over micro-batches; where the model returns
    none, it is the mean that the Trainer logs, at the steps at which it logs. The Trainer's ``grad_norm``, taken before
    it clips, is recorded as ``unclipped_grad_norm``, an evaluation's loss as ``eval_loss``. A resumed run whose ``out``
    holds the first part writes beside it, ``out-from-STEP``.

    After training ``recording`` holds what was recorded, and one line on standard error says so. A Trainer that fails
    does not tell its callbacks: use the callback as a context manager around ``trainer.train()``, call
    :meth:`close`, or leave it to the end of the process.

    Args:
        every: steps between sampled ones, or a schedule.
        sites: which tensors to read.
        stats: ``"core"`` or ``"full"``.
        out: folder for the recording; ``None`` keeps it in memory.
        logger: where sampled steps' numbers go as well, see :mod:`kilolayer.integrations.loggers`.
        log_sites: patterns of sites whose every statistic the logger gets.

    Examples:
        >>> callback = MonitorCallback(every=50, out="runs/a")  # doctest: +SKIP
        >>> Trainer(model, args, train_dataset=data, callbacks=[callback]).train()  # doctest: +SKIP
        >>> callback.recording.series("run", "run", "grad_norm")  # doctest: +SKIP
    """

    def __init__(
        self,
        *,
        every: int | Schedule = 10,
        sites: Selection | None = None,
        stats: str = "full",
        out: str | Path | None = None,
        logger: MonitorLogger | None = None,
        log_sites: str | Sequence[str] = (),
    ):
        self.options = WatchOptions(every, sites, stats, out, logger, log_sites)
        self.recording: Recording | None = None
        self._run: WatchedRun | None = None
        self._losses: LossReader | None = None

    @property
    def monitor(self) -> Monitor | None:
        """The monitor of the run in progress, or of the last."""
        return None if self._run is None else self._run.monitor

    def close(self) -> Recording | None:
        """Finish the recording of a run that ended without notice."""
        return self._close(failed=True)

    def __enter__(self) -> MonitorCallback:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(failed=kind is not None)

    # ------------------------------------------------------------------ called by the Trainer
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start to watch."""
        self._close(failed=True)
        model, optimizer = kwargs["model"], kwargs["optimizer"]
        self._run = WatchedRun(
            self.options,
            model,
            optimizer=optimizer,
            scaler=getattr(optimizer, "scaler", None),
            step=state.global_step,
        )
        is_summed = getattr(args, "average_tokens_across_devices", False)
        self._losses = LossReader(model, num_processes=args.world_size if is_summed else 1)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """All micro-batches of a step are done."""
        if self._run is not None and self._losses is not None and (loss := self._losses.take()) is not None:
            self._run.log(loss=loss)

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The Trainer logs, after the step it speaks of."""
        self._put(state, unclipped_grad_norm=kwargs["logs"].get("grad_norm"))
        if self._losses is not None and not self._losses.has_seen:
            self._put(state, loss=kwargs["logs"].get("loss"))

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An evaluation is over."""
        self._put(state, eval_loss=kwargs["metrics"].get("eval_loss"))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Finish the recording."""
        self._close(failed=False)

    def _put(self, state: Any, **scalars: Any) -> None:
        """Record numbers of the step that is over, if they are any."""
        if self._losses is None or self._run is None or not state.is_world_process_zero or state.global_step < 1:
            return
        for name, value in scalars.items():
            if isinstance(value, float):
                self._run.monitor.writer.add(state.global_step - 1, "run", "run", name, value)

    def _close(self, *, failed: bool) -> Recording | None:
        if self._losses is not None:
            self._losses.remove()
            self._losses = None
            assert self._run is not None
            self.recording = self._run.close(failed=failed)
            self._run.report()
        return self.recording


class LossReader(Hook):
    """Reads the loss from what the model returns: summed over micro-batches where it is already divided by the
    step's number of items, else their mean.

    Args:
        model: whose outputs are read.
        num_processes: by which the Trainer multiplies a loss that is divided by all processes' items.
    """

    def __init__(self, model: nn.Module, *, num_processes: int = 1):
        self.model = model
        self.num_processes = num_processes
        self.has_seen = False
        self._losses: list[Tensor] = []
        self._is_sum = False
        self._handle: RemovableHandle | None = None
        # A hook would be compiled along with the model.
        if not is_compiled(model):
            self._handle = model.register_forward_hook(self, with_kwargs=True)

    def __call__(self, module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        if module is not self.model or not module.training or not torch.is_grad_enabled():
            return
        if torch.compiler.is_compiling():
            return
        loss = _loss_of(output)
        if loss is not None:
            self.has_seen = True
            self._is_sum = kwargs.get("num_items_in_batch") is not None
            self._losses.append(loss.detach())

    def take(self) -> Tensor | None:
        """The loss of the step, if it is known."""
        losses, self._losses = self._losses, []
        if not losses:
            return None
        total = torch.stack([loss.float() for loss in losses]).sum()
        return total * self.num_processes if self._is_sum else total / len(losses)

    def remove(self) -> None:
        """Take the hook away."""
        if self._handle is not None:
            self._handle.remove()


def _loss_of(output: Any) -> Tensor | None:
    """The first number among outputs: ``loss`` by name, or the first of a tuple, as the Trainer takes it."""
    if isinstance(output, Mapping):
        found = output.get("loss")
    elif isinstance(output, (tuple, list)):
        found = output[0] if output else None
    else:
        found = getattr(output, "loss", None)
    if isinstance(found, Tensor) and found.numel() == 1 and found.requires_grad:
        return found.reshape(())
    return None
