"""The monitor in the Trainer of Lightning, ``lightning.pytorch`` or ``pytorch_lightning``, whichever is in use."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kilolayer.integrations.loggers import MonitorLogger
from kilolayer.integrations.watched_run import WatchedRun, WatchOptions
from kilolayer.monitor import Monitor
from kilolayer.monitor.schedule import Schedule
from kilolayer.monitor.sites import Selection
from kilolayer.recording import Recording

PACKAGES = ("lightning.pytorch", "pytorch_lightning")
"""The same library under two names; their classes are not each other's."""


def _find_callback() -> Any:
    """The base class of callbacks: of the package that is imported already, else of the first that is installed."""
    for package in sorted(PACKAGES, key=lambda name: name not in sys.modules):
        try:
            return importlib.import_module(package).Callback
        except ImportError:
            continue
    raise ImportError("kilolayer.integrations.lightning needs lightning; pip install kilolayer[lightning]")


class MonitorCallback(_find_callback()):  # type: ignore[misc]
    """Records what each layer does while a Lightning ``Trainer`` fits.

    Steps are optimizer steps, through gradient accumulation, mixed precision and resuming; validation is not read.
    With automatic optimization ``loss`` is logged, the mean over a step's micro-batches, and, where the Trainer clips,
    ``unclipped_grad_norm``; with manual optimization log what you like with ``callback.monitor.log(loss=...)`` before
    the last optimizer steps. Several optimizers are watched together: a step ends when the last of
    ``trainer.optimizers`` has stepped. A resumed run whose ``out`` holds the first part writes beside it,
    ``out-from-STEP``.

    After fitting, or after an exception, ``recording`` holds what was recorded, and one line on standard error says so.

    Args:
        every: steps between sampled ones, or a schedule.
        sites: which tensors to read.
        stats: ``"core"`` or ``"full"``.
        out: folder for the recording; ``None`` keeps it in memory.
        logger: where sampled steps' numbers go as well, see :mod:`kilolayer.integrations.loggers`.
        log_sites: patterns of sites whose every statistic the logger gets.

    Examples:
        >>> callback = MonitorCallback(every=50, out="runs/a")  # doctest: +SKIP
        >>> Trainer(max_steps=1000, callbacks=[callback]).fit(model, data)  # doctest: +SKIP
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
        super().__init__()
        self.options = WatchOptions(every, sites, stats, out, logger, log_sites)
        self.recording: Recording | None = None
        self._run: WatchedRun | None = None
        self._loss: Tensor | None = None

    @property
    def monitor(self) -> Monitor | None:
        """The monitor of the run in progress, or of the last."""
        return None if self._run is None else self._run.monitor

    # ------------------------------------------------------------------ called by the Trainer
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Start to watch."""
        # Lightning puts an empty one where configure_optimizers returns none.
        optimizers = [one for one in trainer.optimizers if any(group["params"] for group in one.param_groups)]
        if not optimizers:
            raise ValueError("this run has no optimizer, so nothing ends a step; does configure_optimizers return one?")
        self._loss = None
        self._run = WatchedRun(
            self.options,
            pl_module,
            optimizer=optimizers if len(optimizers) > 1 else optimizers[0],
            scaler=_scaler(trainer),
            step=trainer.global_step // len(optimizers),
        )

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Tensor) -> None:
        """A micro-batch has its loss, multiplied by the scaler and divided by the number of micro-batches."""
        if not pl_module.automatic_optimization:
            return
        scaler = _scaler(trainer)
        found = loss.detach().float() / (1.0 if scaler is None else scaler.get_scale())
        self._loss = found if self._loss is None else self._loss + found

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """All micro-batches of a step are done; gradients are not clipped yet."""
        loss, self._loss = self._loss, None
        if self._run is None or not pl_module.automatic_optimization:
            return
        if loss is not None:
            self._run.log(loss=loss)
        if trainer.gradient_clip_val:
            grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
            self._run.log(unclipped_grad_norm=torch.nn.utils.get_total_norm(grads))

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Finish the recording."""
        self._close(failed=False)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Finish the recording of a run that failed."""
        self._close(failed=True)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Whatever ended the run."""
        self._close(failed=True)

    def _close(self, *, failed: bool) -> None:
        if self._run is None or self._run.monitor.recording is not None:
            return
        self.recording = self._run.close(failed=failed)
        self._run.report()


def _scaler(trainer: Any) -> Any:
    return getattr(trainer.precision_plugin, "scaler", None)
