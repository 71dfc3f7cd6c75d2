"""Hooks that read a module's tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from kilolayer.monitor import statistics
from kilolayer.monitor.hook import Hook
from kilolayer.monitor.passes import Pass, PassKeeper
from kilolayer.recording import RecordingWriter, Site

MAX_CALLS = 64
"""Calls of one module that are read in one pass; a cell that runs once per time step may run thousands of times."""


class TapSet:
    """The taps of a model: hung up for a sampled step, taken down after it.

    Args:
        model: the module whose call is a forward pass.
        sites: the site of each tap beside the module it reads.
        writer: numbers the rows.
        is_full: all statistics, or the RMS alone.
    """

    def __init__(
        self, model: nn.Module, sites: Sequence[tuple[Site, nn.Module]], writer: RecordingWriter, *, is_full: bool
    ):
        self.model = model
        self.writer = writer
        self.is_full = is_full
        self.keeper = PassKeeper()
        self.scratch = statistics.Scratch()
        self.seen: dict[str, Site] = {}
        self._taps = [Tap(site, module, self) for site, module in sites]
        self._handles: list[RemovableHandle] = []

    def attach(self) -> None:
        """Hang all hooks up, if they are not."""
        if self._handles:
            return
        self._handles.append(self.keeper.hook(self.model))
        for tap in self._taps:
            if tap.reads_input:
                self._handles.append(tap.module.register_forward_pre_hook(tap, with_kwargs=True))
            else:
                self._handles.append(tap.module.register_forward_hook(tap))
        self._handles.append(self.keeper.hook_end(self.model))

    def detach(self) -> None:
        """Take all hooks down and give the memory for intermediate results back."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self.scratch.clear()

    def ordered(self, sites: Iterable[Site]) -> list[Site]:
        """The sites, and those of further calls, in the order in which they ran; one that never ran keeps its place
        behind its predecessor."""
        described = [site for site in sites if site.name not in self.seen]
        rank = {name: float(index) for index, name in enumerate(self.seen)}
        before = -1.0
        for site in sites:
            before = rank.setdefault(site.name, before + 0.5 if before == int(before) else before)
        everything = sorted([*self.seen.values(), *described], key=lambda site: rank[site.name])
        return [dataclasses.replace(site, order=index) for index, site in enumerate(everything)]


class Tap(Hook):
    """Reads one site: its activation as it passes, and the loss gradient there as it comes back."""

    def __init__(self, site: Site, module: nn.Module, taps: TapSet):
        self.site = site
        self.module = module
        self.taps = taps
        self.keeper = taps.keeper
        self.reads_input = site.name.endswith(":in")
        self.bounds = activation_bounds(module) if site.kind == "activation" else None
        self._codes: list[dict[str, int]] = []

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        # A shallow copy of a module shares its hooks.
        if module is not self.module:
            return
        tensor = first_tensor((args, output) if self.reads_input else output)
        if tensor is None:
            return
        if self.keeper.is_repetition():
            self._read_repetition(tensor)
            return
        current = self.keeper.pass_in_progress()
        if current is None:
            return
        call = current.num_calls[self] = current.num_calls.get(self, 0) + 1
        if call > MAX_CALLS:
            return
        codes = self.codes(call)
        values = tensor.detach()
        if self.taps.is_full:
            for stat, value in statistics.describe(values, self.taps.scratch, self.bounds).items():
                current.activations[codes[stat]] = value
        else:
            current.activations[codes["rms"]] = statistics.rms(values)
        if tensor.requires_grad:
            tensor.register_hook(partial(self._read_gradient, current, codes["grad"]))
        else:
            current.without_graph.add(self)

    def codes(self, call: int) -> dict[str, int]:
        """The rows' codes of one call, by statistic; ``grad`` is the gradient's RMS."""
        while len(self._codes) < call:
            site = self.site
            if self._codes:
                path, _, suffix = site.name.rpartition(":")
                site = dataclasses.replace(site, name=f"{path}#{len(self._codes) + 1}:{suffix}")
            self.taps.seen[site.name] = site
            code = self.taps.writer.code
            codes = {stat: code(site.name, "activation", stat) for stat in statistics.NAMES}
            self._codes.append(codes | {"grad": code(site.name, "activation_grad", "rms")})
        return self._codes[call - 1]

    def _read_repetition(self, tensor: Tensor) -> None:
        """A reentrant checkpoint ran the module without a graph first; the gradient passes through the repetition.

        Of a module that ran several times the repetitions come back in an order of their own, so it is left out.
        """
        current = self.keeper.current
        if current is None or self not in current.without_graph or not tensor.requires_grad:
            return
        if current.num_calls[self] == 1:
            tensor.register_hook(partial(self._read_gradient, current, self.codes(1)["grad"]))

    def _read_gradient(self, owner: Pass, code: int, grad: Tensor) -> None:
        if statistics.is_readable(grad):
            self.keeper.add_gradient(owner, code, statistics.rms(grad.detach()))


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
