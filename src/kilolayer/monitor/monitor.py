"""The monitor: watches a training loop through hooks and fills a recording."""

from __future__ import annotations

import dataclasses
import hashlib
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from kilolayer.monitor.eager import EAGER_REGION, uses_flex_attention
from kilolayer.monitor.facts import describe_setup, is_recording_process
from kilolayer.monitor.first_pass import FirstPass, Inputs
from kilolayer.monitor.guard import Guard
from kilolayer.monitor.output import PassReading, StepOutput
from kilolayer.monitor.rows import Listener
from kilolayer.monitor.scalars import to_scalar
from kilolayer.monitor.schedule import Schedule, resolve_schedule
from kilolayer.monitor.sites import (
    Selection,
    check_selection,
    describe_sites,
    fitting_sites,
    known_sites,
    select_sites,
)
from kilolayer.monitor.statistics import is_distributed as is_sharded
from kilolayer.monitor.taps import TapSet
from kilolayer.monitor.team import Team, find_team
from kilolayer.monitor.unwrap import is_compiled, unwrap_model, unwrap_optimizers
from kilolayer.monitor.updates import UpdateWatch
from kilolayer.recording import Recording, RecordingWriter, Site
from kilolayer.structure import Structure
from kilolayer.structure.names import clean_name
from kilolayer.structure.read import read_call


class Monitor:
    """Record what a model does while it trains, in any loop and for any model.

    On every step: loss and whatever else is logged, learning rates, the norm of all gradients and of each weight
    matrix's (``param_grad``, ``l2_norm``), as ``optimizer.step`` finds them. On a sampled step also, per tensor
    site, the activation's statistics and the RMS of the loss gradient; and per parameter its norm and
    ``update_ratio = l2_norm(update) / l2_norm(parameter)``, taken around ``optimizer.step``.

    A step is an optimizer step: micro-batches of an accumulated gradient share one, and an attempt that a gradient
    scaler skipped is none. With several optimizers it ends when the last one listed has stepped. Forward passes of a
    step that share a backward pass are all read, each call of a module as a site of its own, ``path#0:out``,
    ``path#1:out`` and so on, as are the calls of a module that runs several times in one pass; of several backward
    passes the last counts, with several optimizers the last before each one's step. Forward passes without gradients
    are evaluations and are not read. Where a model was compiled, sampled steps run eagerly.

    Under ``torch.distributed`` every process builds a monitor; their numbers are merged and the first process records
    them. An error of the monitor's own is a warning, never an end of training; what could not be read is listed in
    the recording's facts under ``missing``.

    Args:
        model: read through hooks; left as found. May be wrapped by DDP or ``torch.compile``, or sharded by
            ``fully_shard``.
        optimizer: its ``step`` ends a step; of a list, that of the last. ``None`` for a model examined without
            training, where the caller ends a step with :meth:`end_step`.
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
        ValueError: ``every`` < 1, unknown ``stats``, ``sites`` that match nothing, a model without parameters,
            of TorchScript or wrapped by FSDP1, an optimizer of another model.
        TypeError: an argument of the wrong kind.
        FileExistsError: ``out`` already holds a recording.

    Examples:
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
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
        *,
        every: int | Schedule = 10,
        sites: Selection | None = None,
        stats: str = "full",
        scaler: torch.amp.GradScaler | None = None,
        out: str | Path | None = None,
    ):
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
        if isinstance(model, torch.jit.ScriptModule):
            raise ValueError("a model of TorchScript takes no hooks; monitor it as it is before torch.jit.script")
        if stats not in ("core", "full"):
            raise ValueError(f"stats {stats!r} is unknown; use 'core' or 'full'")
        self.model = unwrap_model(model)
        self.optimizers = unwrap_optimizers(optimizer)
        self.every = every
        self.step = 0
        self.recording: Recording | None = None
        self._schedule = resolve_schedule(every)
        self._selection = sites
        self._is_full = stats == "full"
        self._scaler = scaler
        self._is_compiled = is_compiled(model)
        facts = describe_setup(self.model, self.optimizers)
        described = self._describe()
        # A selection that matches nothing is told before a folder is made.
        check_selection(self.model, described, sites)
        is_first_process = is_recording_process()
        self.writer = RecordingWriter(out if is_first_process else None)
        self.writer.facts = facts
        self._guard = Guard(lambda: self.step)
        self._output = StepOutput(self.writer, self._guard, is_first_process=is_first_process, sites=self._site_table)
        self._team: Team | None = None
        self._handles: list[RemovableHandle] = []
        self._is_started = False
        self._first_step = 0
        self._first_pass: FirstPass | None = None
        self._reading_error: Exception | None = None
        self._is_sampled = False
        self._was_seen = False
        self._survey(described, {})

    # ------------------------------------------------------------------ life
    def start(self, *, step: int = 0) -> Monitor:
        """Begin to watch; what entering the ``with`` block does.

        Args:
            step: number of the first step; of a resumed run, how many were done before.

        Raises:
            RuntimeError: it was started before.
        """
        if self._is_started:
            raise RuntimeError("this monitor was already started; make a new one for another recording")
        self._is_started = True
        self.step = self._first_step = step
        with self._guard("the other processes"):
            self._team = find_team(next(self.model.parameters()).device)
            if self._team is not None:
                self._team.register(self._signature())
                self._output.join(self._team)
        self._survey(self._described, {})
        for optimizer in self.optimizers:
            self._handles += [
                optimizer.register_step_pre_hook(self._before_update),
                optimizer.register_step_post_hook(self._after_update),
            ]
        self._begin_step()
        return self

    def close(self) -> Recording:
        """Take all hooks away, finish the recording and return it; what leaving the ``with`` block does.

        Under ``torch.distributed`` every process closes its own; the first one's recording holds the rows.
        """
        return self._close(failed=False)

    def __enter__(self) -> Monitor:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(failed=kind is not None)

    def is_sampled(self, step: int) -> bool:
        """Whether this step is (or will be) sampled."""
        return bool(self._schedule(step))

    def log(self, **scalars: Any) -> None:
        """Record numbers of the step in progress, such as ``loss``; call it before ``optimizer.step``.

        A name logged twice in a step keeps the last value. Under ``torch.distributed`` the mean over the processes
        that logged it is recorded. ``unclipped_grad_norm``, what ``torch.nn.utils.clip_grad_norm_`` returns, lets
        :func:`find_spikes` see through the clipping.

        Raises:
            TypeError, ValueError: a value that is not one real number.
            RuntimeError: the monitor is closed.
        """
        if self.recording is not None:
            raise RuntimeError("this monitor is closed; log inside the with block, before close()")
        self._output.log({name: to_scalar(name, value) for name, value in scalars.items()})

    def subscribe(self, listener: Listener) -> None:
        """Have ``listener(step, rows)`` called after each sampled step, ``rows[site, role, stat]`` being a number.

        Under ``torch.distributed`` that happens in the first process alone, with merged numbers.
        """
        self._output.rows.subscribe(listener)

    def sites(self) -> tuple[Site, ...]:
        """The site table as far as it is known: calls of a module that runs several times count once it has run."""
        return tuple(self._site_table())

    def end_step(self) -> None:
        """End a step: called after the last ``optimizer.step`` by a hook; by hand where there is no optimizer."""
        if self._reads_parameters():
            with self._guard("parameters and gradients"):
                if not self.optimizers:
                    self._check_parameters()
                    self._watch.read_without_optimizer(step=self.step, is_sampled=self._is_sampled)
                self._watch.end_step(self.step)
        reading = None
        if self._is_sampled and self._output.is_needed:
            with self._guard("activations of this step"):
                reading = self._reading()
        with self._guard("rows of this step"):
            self._output.put(self.step, reading, is_sampled=self._is_sampled)
        self.step += 1
        self._begin_step()

    # ------------------------------------------------------------------ sampling
    def _survey(self, described: list[Site], seen: dict[str, Site]) -> None:
        """Choose what to read of the model as it is now."""
        self._survey_tensors(described, seen)
        self._survey_parameters()
        self._first_pass = FirstPass(self.model, self._read_structure) if self._awaits_structure() else None

    def _survey_tensors(self, described: list[Site], seen: dict[str, Site]) -> None:
        self._described = described
        self._taps = TapSet(
            self.model, self._chosen(described), rows=self._output.rows, guard=self._guard, is_full=self._is_full
        )
        self._taps.keeps_sums = self._team is not None
        self._taps.seen.update(seen)
        self.writer.sites = self._site_table()

    def _check_parameters(self) -> None:
        """A model may have been moved to memory of its own, or sharded, between the start and the first step."""
        if self.step == self._first_step and [*map(id, self._parameters)] != [*map(id, self.model.parameters())]:
            self._survey_parameters()

    def _survey_parameters(self) -> None:
        """Take the parameters as they are now."""
        self._parameters = list(self.model.parameters())
        self._watch = UpdateWatch(
            [(clean_name(name), parameter) for name, parameter in self.model.named_parameters()],
            self.optimizers,
            rows=self._output.rows,
            is_full=self._is_full,
            num_processes=1 if self._team is None else self._team.size,
        )
        self._num_owned = self._watch.count_parameters()
        if self._output.merge is not None:
            self._output.merge.readers = self._watch.sharded

    def _describe(self) -> list[Site]:
        """The site table as far as it is known without a forward pass."""
        if isinstance(self._selection, Structure):
            return list(self._selection.sites)
        return describe_sites(self.model)

    def _awaits_structure(self) -> bool:
        """Whether the model's structure is to be read at its first pass.

        A pass may hold collectives, so that all processes read or none does.
        """
        return not isinstance(self._selection, Structure) and (self._team is None or self._output.merge is not None)

    def _read_structure(self, inputs: Inputs) -> None:
        """At the model's first call: find out what it is, and read there what its structure says.

        Where that fails, the model's own call may be about to fail too, so that the next call is another first one.
        """
        reading, self._first_pass = self._first_pass, None
        if any(is_sharded(parameter) for parameter in self.model.parameters()):
            return  # only the pass itself brings the parameters together
        self._taps.detach()
        self._reading_error = None
        try:
            structure = read_call(self.model, *inputs).sites
            described = known_sites(self.model, structure, self._described, self._selection)
            select_sites(described, self._selection)
            self._survey_tensors(described, self._taps.seen)
        except Exception as error:
            self._reading_error = error
            if reading is not None:
                self._first_pass = reading
                reading.attach()
        with self._guard("activations"):
            self._taps.attach_in_call(*inputs)

    def _chosen(self, described: list[Site]) -> list[Site]:
        is_given = self._selection is not None and not isinstance(self._selection, Structure)
        chosen = fitting_sites(described, self._selection)
        if self._is_full or is_given:
            return chosen
        return [site for site in chosen if site.stream or site.block_index is None or site.kind == "output"]

    def _begin_step(self) -> None:
        """Hang the hooks up if the coming step is sampled, else take them down."""
        self._is_compiled = self._is_compiled or self._taps.keeper.runs_compiled
        self._taps.keeper.clear()
        self._is_sampled = False
        with self._guard("the choice of steps and sites"):
            if self._watch.count_parameters() != self._num_owned:
                self._survey_again()
            self._is_sampled = self.is_sampled(self.step)
        self._output.rows.listen(self.step if self._is_sampled else None)
        if not self._is_sampled:
            self._end_sampling()
            return
        if self._is_compiled or self._may_be_compiled():
            EAGER_REGION.enter(self)
        else:
            EAGER_REGION.leave(self)
        if not self._output.is_needed:
            self._detach()
            return
        self._taps.attach()
        if self._first_pass is not None:
            self._first_pass.attach()

    def _survey_again(self) -> None:
        self._detach()
        self._survey(self._describe(), self._taps.seen)

    def _may_be_compiled(self) -> bool:
        """Whether the model may yet be compiled from outside, before it is seen for the first time."""
        return not self._was_seen and "torch._dynamo" in sys.modules and not uses_flex_attention(self.model)

    def _detach(self) -> None:
        self._taps.detach()
        if self._first_pass is not None:
            self._first_pass.detach()

    def _end_sampling(self) -> None:
        self._detach()
        self._watch.clear()
        EAGER_REGION.leave(self)

    # ------------------------------------------------------------------ around optimizer.step
    def _before_update(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: dict[str, Any]) -> None:
        if _is_skipped(optimizer):
            return
        with self._guard("parameters and gradients"):
            self._check_parameters()
            if self._reads_parameters():
                self._watch.before(optimizer, args, kwargs, step=self.step, is_sampled=self._is_sampled)
        if self._output.is_needed:
            lrs = self._watch.learning_rates(optimizer)
            self._output.log_if_new({name: to_scalar(name, lr) for name, lr in lrs.items()})

    def _after_update(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: dict[str, Any]) -> None:
        if _is_skipped(optimizer):
            return
        if self._reads_parameters():
            with self._guard("parameters and gradients"):
                self._watch.after(optimizer, step=self.step, is_sampled=self._is_sampled)
        if self._watch.ends_step(optimizer):
            self.end_step()
        else:
            self._taps.keeper.mark(id(optimizer))

    def _reads_parameters(self) -> bool:
        """Whether this process reads parameters: where all hold the same, the first one does for all."""
        output = self._output
        return output.merge is not None if self._watch.is_sharded else output.is_first_process

    # ------------------------------------------------------------------ the pass
    def _reading(self) -> PassReading | None:
        """The pass that counts for the step in progress."""
        found = self._taps.keeper.counting()
        if found is None:
            # Compiled code calls no hooks; next time it is held back.
            self._is_compiled = self._is_compiled or "torch._dynamo" in sys.modules
            if not self._was_seen:
                self._warn_unseen()
            return None
        if not self._was_seen:
            self._was_seen = True
            self._settle_sites()
        return PassReading(self._taps, found, self._loss_scale())

    def _settle_sites(self) -> None:
        """A pass was read: what has no structure by now keeps the sites that its modules' classes tell."""
        if self._first_pass is not None:
            self._first_pass.detach()
            self._first_pass = None
        if self._reading_error is not None:
            what = "the structure of the model, so that its modules are told by their classes"
            self._guard.report(what, self._reading_error)
            self._reading_error = None

    def _loss_scale(self) -> float:
        if self._scaler is not None:
            return float(self._scaler.get_scale())
        scales = [scale for one in self.optimizers if (scale := getattr(one, "grad_scale", None)) is not None]
        return float(scales[-1]) if scales else 1.0

    def _warn_unseen(self) -> None:
        if self._output.is_first_process:
            warnings.warn(
                f"step {self.step} ended, but {type(self.model).__name__} was not called with gradients enabled since "
                "the monitor was started: is it the model that trains, or a copy of it?",
                stacklevel=2,
            )

    def _site_table(self) -> list[Site]:
        return self._taps.ordered(self._described)

    # ------------------------------------------------------------------ the end
    def _close(self, *, failed: bool) -> Recording:
        if self.recording is None:
            reading = None
            if failed and self._is_sampled and self._taps.keeper.counting() is not None:
                with self._guard("activations of the last step"):
                    reading = self._reading()
            self._end_sampling()
            for handle in self._handles:
                handle.remove()
            self.recording = self._output.finish(self.step, reading, failed=failed)
        return self.recording

    def _signature(self) -> str:
        """What must be the same in all processes: parameters, sites, statistics and steps."""
        parameters = [(clean_name(name), tuple(p.shape)) for name, p in self.model.named_parameters()]
        sites = [site.name for site in self._chosen(self._described)]
        is_plain = isinstance(self.every, int) or dataclasses.is_dataclass(self.every)
        every = repr(self.every) if is_plain else type(self.every).__name__
        watched = (parameters, sites, every, self._is_full, len(self.optimizers))
        return hashlib.sha256(repr(watched).encode()).hexdigest()


def _is_skipped(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a gradient scaler told a fused optimizer to leave the parameters alone."""
    found = getattr(optimizer, "found_inf", None)
    return found is not None and bool(found)
