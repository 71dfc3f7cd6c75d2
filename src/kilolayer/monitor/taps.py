"""Hooks that read a module's tensors."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from kilolayer.monitor import statistics
from kilolayer.monitor.guard import Guard
from kilolayer.monitor.hook import Hook
from kilolayer.monitor.merging import Entry
from kilolayer.monitor.passes import Pass, PassKeeper
from kilolayer.monitor.rows import Key, RowQueue
from kilolayer.monitor.sites import MAX_CALLS
from kilolayer.monitor.statistics import Value
from kilolayer.recording import Site
from kilolayer.structure.names import clean_name
from kilolayer.structure.recorder import is_recording

NAME = re.compile(r"(?P<path>.*?)(?:#(?P<call>\d+))?:(?P<tensor>\w+)", re.DOTALL)
"""A tensor site's name, ``path[#call]:tensor``."""


class TapSet:
    """The taps of a model: hung up for a sampled step, taken down after it.

    Args:
        model: the module whose call is a forward pass.
        sites: what to read. A site without a call number stands for every call of its module, one with a number
            for that call alone.
        rows: numbers the rows.
        guard: takes errors while reading.
        is_full: all statistics, or the RMS alone.
    """

    def __init__(self, model: nn.Module, sites: Sequence[Site], *, rows: RowQueue, guard: Guard, is_full: bool):
        self.model = model
        self.code = rows.code
        self.guard = guard
        self.is_full = is_full
        self.keeps_sums = False
        self.keeper = PassKeeper()
        self.scratch = statistics.Scratch()
        self.seen: dict[str, Site] = {}
        self._taps = self._build(sites)
        self._handles: list[RemovableHandle] = []

    @property
    def is_attached(self) -> bool:
        """Whether the hooks hang."""
        return bool(self._handles)

    def attach(self) -> None:
        """Hang all hooks up, if they are not."""
        if self._handles:
            return
        self._handles.append(self.keeper.hook(self.model))
        for tap in self._taps:
            if not tap.has_failed and (handle := tap.hang_up()) is not None:
                self._handles.append(handle)
        self._handles.append(self.keeper.hook_end(self.model))

    def attach_in_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Hang all hooks up from inside a hook in front of the model's call, which those in front miss."""
        self.attach()
        self.keeper.enter_model()
        for tap in self._taps:
            if tap.reads_input and tap.module is self.model:
                tap(self.model, args, kwargs)

    def detach(self) -> None:
        """Take all hooks down and give the memory for intermediate results back."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self.scratch.clear()

    def rows(self, found: Pass) -> tuple[dict[int, Value], dict[int, Value]]:
        """A pass as values by row code: activations, and gradients."""
        activations: dict[int, Value] = {}
        gradients: dict[int, Value] = {}
        for (tap, call), values in found.activations.items():
            assert isinstance(tap, Tap)
            codes = tap.codes(call, is_repeated=found.num_calls[tap] > 1)
            activations.update((codes[stat], value) for stat, value in values.items())
            if (tap, call) in found.gradients:
                gradients[codes["grad"]] = found.gradients[tap, call]
        return activations, gradients

    def entries(self, found: Pass, *, grad_factor: float) -> dict[Key, Entry]:
        """A pass as this process's share of each statistic; taken of a pass that kept sums."""
        entries: dict[Key, Entry] = {}
        for place, values in found.activations.items():
            tap, call = place
            assert isinstance(tap, Tap)
            site = tap.name(call, is_repeated=found.num_calls[tap] > 1)
            num_entries, num_pairs = found.weights[place]
            for stat, value in values.items():
                weight = num_pairs if stat == "sample_cosine" else num_entries
                mean = found.means[place] if stat == "std" else 0.0
                entries[site, "activation", stat] = Entry(weight, value, mean)
            if place in found.gradients:
                grad = statistics.times(found.gradients[place], grad_factor)
                entries[site, "activation_grad", "rms"] = Entry(num_entries, grad)
        return entries

    def ordered(self, sites: Iterable[Site]) -> list[Site]:
        """The sites, each call on its own where a module ran several times, in the order in which they ran; one that
        never ran keeps its place behind its predecessor."""
        split_up = {tap.site.name for tap in self._taps if tap.site is not None and tap.is_repeated}
        described = [site for site in sites if site.name not in self.seen and site.name not in split_up]
        rank = {name: float(index) for index, name in enumerate(self.seen)}
        before = -1.0
        for site in sites:
            before = rank.setdefault(site.name, math.floor(before) + 0.5)
        everything = sorted([*self.seen.values(), *described], key=lambda site: rank[site.name])
        return [dataclasses.replace(site, order=index) for index, site in enumerate(everything)]

    def _build(self, sites: Sequence[Site]) -> list[Tap]:
        modules = {clean_name(path): module for path, module in self.model.named_modules(remove_duplicate=False)}
        taps: dict[tuple[str, str], Tap] = {}
        for site in sites:
            parts = NAME.fullmatch(site.name)
            if parts is None or parts["path"] not in modules:
                raise ValueError(f"site {site.name!r} is at no module of {type(self.model).__name__}")
            key = (parts["path"], parts["tensor"])
            if key not in taps:
                taps[key] = Tap(*key, modules[parts["path"]], self)
            taps[key].add(site, None if parts["call"] is None else int(parts["call"]))
        return list(taps.values())


class Tap(Hook):
    """Reads one tensor of a module: its activation as it passes, and the loss gradient there as it comes back."""

    def __init__(self, path: str, tensor: str, module: nn.Module, taps: TapSet):
        self.path = path
        self.tensor = tensor
        self.module = module
        self.taps = taps
        self.keeper = taps.keeper
        self.reads_input = tensor == "in"
        self.bounds = None if self.reads_input else activation_bounds(module)
        self.site: Site | None = None
        self.is_repeated = False
        self.has_failed = False
        self._by_call: dict[int, Site] = {}
        self._codes: dict[str, dict[str, int]] = {}

    def add(self, site: Site, call: int | None) -> None:
        """Read for this site: one call of the module, or (``None``) all of them."""
        if call is None:
            self.site = site
        else:
            self._by_call[call] = site

    def hang_up(self) -> RemovableHandle | None:
        """Hang the hook up; ``None`` at a module that takes none, as those of TorchScript."""
        try:
            if self.reads_input:
                return self.module.register_forward_pre_hook(self, with_kwargs=True)
            return self.module.register_forward_hook(self)
        except RuntimeError as error:
            self._give_up(error)
            return None

    def __call__(self, module: nn.Module, args: Any, output: Any = None) -> None:
        # A shallow copy of a module shares its hooks; a hook that was taken down by one in front of it is called once
        # more. Code that is being compiled leaves no room for them.
        if module is not self.module or self.has_failed or not self.taps.is_attached or torch.compiler.is_compiling():
            return
        if is_recording():  # another monitor reads the model's structure
            return
        try:
            self._read(args, output)
        except Exception as error:
            self._give_up(error)

    def _read(self, args: Any, output: Any) -> None:
        tensor = first_tensor((args, output) if self.reads_input else output)
        if tensor is None:
            return
        if self.keeper.is_repetition():
            self._read_repetition(tensor)
            return
        current = self.keeper.pass_in_progress()
        if current is None:
            return
        call = current.num_calls.get(self, 0)
        current.num_calls[self] = call + 1
        if call >= MAX_CALLS or (self.site is None and call not in self._by_call):
            return
        current.activations[self, call] = self._describe(tensor.detach(), current, call)
        if tensor.requires_grad:
            tensor.register_hook(partial(self._read_gradient, current, call))
        else:
            current.without_graph.add(self)

    def _describe(self, values: Tensor, current: Pass, call: int) -> dict[str, Value]:
        keeps_sums = self.taps.keeps_sums
        if keeps_sums:
            num_samples = values.shape[0] if values.dim() else 1
            current.weights[self, call] = float(values.numel()), float(num_samples * (num_samples - 1))
        if not self.taps.is_full:
            return {"rms": statistics.rms(values)}
        found = statistics.describe(values, self.taps.scratch, self.bounds, with_mean=keeps_sums)
        if keeps_sums:
            current.means[self, call] = found.pop("mean")
        return found

    def _give_up(self, error: Exception) -> None:
        self.has_failed = True
        self.taps.guard.report(f"{self.path}:{self.tensor}", error)

    def name(self, call: int, *, is_repeated: bool) -> str:
        """The site's name of one call.

        A module that ran several times in one pass keeps its numbered names from then on.
        """
        return self._site_of(call, is_repeated=is_repeated).name

    def _site_of(self, call: int, *, is_repeated: bool) -> Site:
        self.is_repeated = self.is_repeated or is_repeated
        site = self._by_call.get(call, self.site)
        assert site is not None
        if call not in self._by_call and self.is_repeated:
            site = dataclasses.replace(site, name=f"{self.path}#{call}:{self.tensor}")
        return self.taps.seen.setdefault(site.name, site)

    def codes(self, call: int, *, is_repeated: bool) -> dict[str, int]:
        """The rows' codes of one call by statistic; ``grad`` is the gradient's RMS."""
        name = self.name(call, is_repeated=is_repeated)
        if name not in self._codes:
            code = self.taps.code
            codes = {stat: code(name, "activation", stat) for stat in statistics.NAMES}
            self._codes[name] = codes | {"grad": code(name, "activation_grad", "rms")}
        return self._codes[name]

    def _read_repetition(self, tensor: Tensor) -> None:
        """A reentrant checkpoint ran the module without a graph first; the gradient passes through the repetition.

        Of a module that ran several times the repetitions come back in an order of their own, so it is left out.
        """
        current = self.keeper.current
        if current is None or self not in current.without_graph or not tensor.requires_grad:
            return
        if current.num_calls[self] == 1:
            tensor.register_hook(partial(self._read_gradient, current, 0))

    def _read_gradient(self, owner: Pass, call: int, grad: Tensor) -> None:
        if self.has_failed or not statistics.is_readable(grad):
            return
        try:
            self.keeper.add_gradient(owner, (self, call), statistics.rms(grad.detach()))
        except Exception as error:
            self._give_up(error)


def first_tensor(value: Any) -> Tensor | None:
    """The first tensor in what a module takes or returns that statistics can be taken of."""
    if isinstance(value, Tensor):
        return value if statistics.is_readable(value) else None
    parts: Iterable[Any] = ()
    if isinstance(value, Mapping):
        parts = value.values()
    elif isinstance(value, (tuple, list)):
        parts = value
    elif dataclasses.is_dataclass(value):
        parts = (getattr(value, field.name) for field in dataclasses.fields(value))
    return next((found for part in parts if (found := first_tensor(part)) is not None), None)


def activation_bounds(module: nn.Module) -> statistics.Bounds | None:
    """The ends of an activation function's range; ``None`` where it has less than two."""
    if isinstance(module, (nn.Sigmoid, nn.Hardsigmoid)):
        return 0.0, 1.0
    if isinstance(module, (nn.Tanh, nn.Softsign)):
        return -1.0, 1.0
    if isinstance(module, nn.Hardtanh) and not isinstance(module, nn.ReLU6):
        return float(module.min_val), float(module.max_val)
    return None
