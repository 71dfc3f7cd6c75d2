"""The monitor: watches a training loop through hooks and fills a recording."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from kilolayer.monitor.eager import EAGER_REGION
from kilolayer.monitor.facts import describe_setup, is_recording_process
from kilolayer.monitor.rows import RowQueue
from kilolayer.monitor.scalars import to_scalar
from kilolayer.monitor.schedule import Schedule, resolve_schedule
from kilolayer.monitor.sites import Selection, describe_sites, select_sites
from kilolayer.monitor.taps import TapSet
from kilolayer.monitor.unwrap import clean_name, is_compiled, unwrap_model, unwrap_optimizer
from kilolayer.monitor.weights import ParameterReader
from kilolayer.recording import Recording, RecordingWriter, Site
from kilolayer.structure import Structure

SAVE_INTERVAL_S = 30.0
"""Time after which a sampled step writes what was gathered, so that a killed process loses little."""


class Monitor:
    """Record what a model does while it trains, in any loop and for any model.

    On every step: loss and whatever else is logged, learning rates, the norm of all gradients and of each weight
    matrix's (``param_grad``, ``l2_norm``), as ``optimizer.step`` finds them. On a sampled step also, per tensor
    site, the activation's statistics and the RMS of the loss gradient; and per parameter its norm and
    ``update_ratio = l2_norm(update) / l2_norm(parameter)``, taken around ``optimizer.step``.

    A step is an optimizer step: micro-batches of an accumulated gradient share one, and an attempt that a gradient
    scaler skipped is none. Of the forward passes of a step the last that was differentiated is read. Forward
    passes without gradients are evaluations and are not read. Where a module runs several times in one pass, each
    call is a site of its own, ``path#0:out``, ``path#1:out`` and so on. Where a model was compiled, sampled steps
    run eagerly. Under ``torch.distributed`` the first process records, of its own share of the batch.

    Args:
        model: read through hooks; left as found. May be wrapped by DDP or ``torch.compile``.
        optimizer: its ``step`` ends a step; ``None`` for a model examined without training, where the caller
            ends a step with :meth:`end_step`.
        every: sample step 0 and each ``every``-th after it; or a function of the step, or a schedule such as
            :class:`LogSpaced` and :class:`FirstSteps`.
        sites: which tensors to read: patterns of site names such as ``"blocks.*:sum"``, sites, or a function of
            the site; ``None`` for what ``stats`` says. :func:`describe_sites` lists what there is. The result of
            :func:`kilolayer.read_structure` has the monitor read that model's residual sums and branches.
        stats: ``"core"``: RMS at the sites that stand for the signal along the depth, the input and what is
            outside the blocks; norms and updates of weight matrices; nothing on steps that are not sampled.
            ``"full"``: RMS, std, largest magnitude, zero fraction, saturation and sample cosine at every tensor
            site; norms and updates of all parameters; gradient norms of weight matrices on every step, which
            :func:`find_spikes` needs.
        scaler: the ``GradScaler`` that multiplies the loss, so that activation gradients are divided by its scale.
        out: folder for the recording; ``None`` keeps it in memory.

    Raises:
        ValueError: ``every`` < 1, unknown ``stats``, ``sites`` that match nothing, a model without parameters or
            with sharded ones, an optimizer of another model.
        TypeError: an argument of the wrong kind.
        FileExistsError: ``out`` already holds a recording.

    Example:
        >>> model = nn.Linear(3, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with Monitor(model, optimizer, every=1) as monitor:
        ...     loss = model(torch.ones(4, 3)).square().mean()
        ...     loss.backward()
        ...     monitor.log(loss=loss)
        ...     optimizer.step()
        >>> monitor.recording.has("update", "update_ratio")
        True
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        every: int | Schedule = 10,
        sites: Selection | None = None,
        stats: str = "full",
        scaler: torch.amp.GradScaler | None = None,
        out: str | Path | None = None,
    ):
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
        if stats not in ("core", "full"):
            raise ValueError(f"stats {stats!r} is unknown; use 'core' or 'full'")
        self.model = unwrap_model(model)
        self.optimizer = None if optimizer is None else unwrap_optimizer(optimizer)
        self.every = every
        self.step = 0
        self.recording: Recording | None = None
        self._schedule = resolve_schedule(every)
        self._selection = sites
        self._is_full = stats == "full"
        self._scaler = scaler
        self._is_compiled = is_compiled(model)
        self._records = is_recording_process()
        facts = describe_setup(self.model, self.optimizer)
        described = self._describe()
        self._chosen(described)  # a selection that matches nothing is told before a folder is made
        self.writer = RecordingWriter(out if self._records else None)
        self.writer.facts = facts
        self._rows = RowQueue(self.writer)
        self._scalars: dict[str, float | Tensor] = {}
        self._handles: list[RemovableHandle] = []
        self._is_sampled = False
        self._has_closure = False
        self._saved_at = time.monotonic()
        self._survey(described, {})

    # ------------------------------------------------------------------ life
    def start(self) -> Monitor:
        """Begin to watch; what entering the ``with`` block does.

        Raises:
            RuntimeError: it was started before.
        """
        if self._handles or self.recording is not None:
            raise RuntimeError("this monitor was already started; make a new one for another recording")
        if self.optimizer is not None:
            self._handles = [
                self.optimizer.register_step_pre_hook(self._before_update),
                self.optimizer.register_step_post_hook(self._after_update),
            ]
        self._begin_step()
        return self

    def close(self) -> Recording:
        """Take all hooks away, finish the recording and return it; what leaving the ``with`` block does."""
        if self.recording is None:
            self._end_sampling()
            for handle in self._handles:
                handle.remove()
            self._put_scalars()
            self._rows.flush()
            self._reader.clear()
            self.writer.sites = self._site_table()
            self.recording = self.writer.close()
        return self.recording

    def __enter__(self) -> Monitor:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and self._is_sampled:
            self._put_pass()
        self.close()

    def is_sampled(self, step: int) -> bool:
        """Whether this step is (or will be) sampled."""
        return bool(self._schedule(step))

    def log(self, **scalars: Any) -> None:
        """Record numbers of the step in progress, such as ``loss``; call it before ``optimizer.step``.

        A name logged twice in a step keeps the last value. ``unclipped_grad_norm``, what
        ``torch.nn.utils.clip_grad_norm_`` returns, lets :func:`find_spikes` see through the clipping.

        Raises:
            TypeError, ValueError: a value that is not one real number.
            RuntimeError: the monitor is closed.
        """
        if self.recording is not None:
            raise RuntimeError("this monitor is closed; log inside the with block, before close()")
        self._scalars |= {name: to_scalar(name, value) for name, value in scalars.items()}

    def end_step(self) -> None:
        """End a step: called after ``optimizer.step`` by a hook; by hand where there is no optimizer."""
        if self._records:
            if self.optimizer is None:
                self._read_gradients()
                if self._is_sampled:
                    self._reader.read_sizes(self.step, copy=False)
            self._put_scalars()
            if self._is_sampled:
                self._put_pass()
                self._move_and_save()
        self.step += 1
        self._begin_step()

    # ------------------------------------------------------------------ sampling
    def _survey(self, described: list[Site], seen: dict[str, Site]) -> None:
        """Choose what to read of the model as it is now."""
        self._described = described
        self._taps = TapSet(self.model, self._chosen(described), self.writer, is_full=self._is_full)
        self._taps.seen.update(seen)
        parameters = [(clean_name(name), parameter) for name, parameter in self.model.named_parameters()]
        self._reader = ParameterReader(parameters, self.optimizer, self._rows, weights_only=not self._is_full)
        self._num_owned = self._count_owned()
        self.writer.sites = self._site_table()

    def _describe(self) -> list[Site]:
        if isinstance(self._selection, Structure):
            return list(self._selection.sites)
        return describe_sites(self.model)

    def _chosen(self, described: list[Site]) -> list[Site]:
        is_given = self._selection is not None and not isinstance(self._selection, Structure)
        chosen = select_sites(described, self._selection)
        if self._is_full or is_given:
            return chosen
        return [site for site in chosen if site.stream or site.block_index is None or site.kind == "output"]

    def _count_owned(self) -> int:
        return 0 if self.optimizer is None else sum(len(group["params"]) for group in self.optimizer.param_groups)

    def _begin_step(self) -> None:
        """Hang the hooks up if the coming step is sampled, else take them down."""
        self._taps.keeper.clear()
        if self._count_owned() != self._num_owned:
            self._taps.detach()
            self._survey(self._describe(), self._taps.seen)
        self._is_sampled = self.is_sampled(self.step)
        if not self._is_sampled:
            self._end_sampling()
            return
        if self._is_compiled:
            EAGER_REGION.enter(self)
        if self._records:
            self._taps.attach()

    def _end_sampling(self) -> None:
        self._taps.detach()
        self._reader.clear()
        EAGER_REGION.leave(self)

    # ------------------------------------------------------------------ around optimizer.step
    def _before_update(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: dict[str, Any]) -> None:
        if not self._records or _is_skipped(optimizer):
            return
        # A closure computes the gradients inside the step, so they are read after it.
        self._has_closure = kwargs.get("closure") is not None or any(callable(value) for value in args)
        if not self._has_closure:
            self._read_gradients(getattr(optimizer, "grad_scale", None))
        if self._is_sampled:
            self._reader.read_sizes(self.step, copy=self._has_closure)
        for index, group in enumerate(optimizer.param_groups):
            name = "lr" if index == 0 else f"lr_{index}"
            self._scalars.setdefault(name, to_scalar(name, group["lr"]))

    def _after_update(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: dict[str, Any]) -> None:
        if _is_skipped(optimizer):
            return
        if self._records:
            if self._has_closure:
                self._read_gradients()
            if self._is_sampled:
                self._reader.read_updates(self.step, measured=self._has_closure)
        self.end_step()

    def _read_gradients(self, scale: Tensor | None = None) -> None:
        # Reading every gradient once more is most of what a step that is not sampled would cost.
        if self._is_full or self._is_sampled:
            self._reader.read_gradients(self.step, is_sampled=self._is_sampled, scale=scale)

    # ------------------------------------------------------------------ rows
    def _put_pass(self) -> None:
        found = self._taps.keeper.counting()
        if found is None:
            self._warn_unseen()
            return
        activations, gradients = self._taps.rows(found)
        self._rows.put_each(self.step, activations)
        self._rows.put_each(self.step, gradients, factor=1 / self._loss_scale())

    def _loss_scale(self) -> float:
        if self._scaler is not None:
            return float(self._scaler.get_scale())
        scale = getattr(self.optimizer, "grad_scale", None)
        return 1.0 if scale is None else float(scale)

    def _warn_unseen(self) -> None:
        if not self._taps.seen:
            warnings.warn(
                f"step {self.step} ended, but {type(self.model).__name__} was not called with gradients enabled since "
                "the monitor was started: is it the model that trains, or a copy of it?",
                stacklevel=2,
            )

    def _put_scalars(self) -> None:
        values = {
            self.writer.code("run", "run", name): (value, 1.0) if isinstance(value, Tensor) else value
            for name, value in self._scalars.items()
        }
        if self._records:
            self._rows.put_each(self.step, values)
        self._scalars = {}

    def _move_and_save(self) -> None:
        self._rows.flush()
        if self.writer.folder is not None and time.monotonic() - self._saved_at > SAVE_INTERVAL_S:
            self.writer.sites = self._site_table()
            self.writer.flush()
            self._saved_at = time.monotonic()

    def _site_table(self) -> list[Site]:
        return self._taps.ordered(self._described)


def _is_skipped(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a gradient scaler told a fused optimizer to leave the parameters alone."""
    found = getattr(optimizer, "found_inf", None)
    return found is not None and bool(found)
