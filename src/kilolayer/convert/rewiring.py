"""Put wirings into a model: which of its modules takes a branch's input, ends it, and stands behind its sum."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from kilolayer.convert.branches import FoundBranch, Network, Refusal
from kilolayer.convert.rewire import Learned, Tap, Wiring, as_rewired, wirings_of
from kilolayer.schemes import BranchScales

SLOTS = ("pre", "end", "post")


@dataclass(frozen=True)
class RewiredBranch:
    """One branch that gets another wiring."""

    branch: FoundBranch
    scales: BranchScales
    is_pre_source: bool
    adds_final_norm: bool

    @property
    def norm_path(self) -> str:
        """The one norm the branch has."""
        return self.branch.norms["pre" if self.is_pre_source else "post"]


def rewire(model: nn.Module, wirings: tuple[RewiredBranch, ...], *, final_norms: Mapping[Any, str | None]) -> None:
    """Wire every branch anew; the model's own norm fills the first slot, copies of it the others.

    Args:
        model: the model, changed in place.
        wirings: its branches, in order.
        final_norms: norms that end a stack and are taken out.
    """
    shared: dict[tuple[str, str], Wiring] = {}
    scales_of_layer: dict[tuple[str, int], Learned] = {}
    starts: dict[tuple[str, int], Wiring] = {}
    for one in wirings:
        key = (one.norm_path, str(one.branch.exit))
        if key not in shared:
            shared[key] = _wire(model, one, scales_of_layer)
        start = starts.setdefault((one.branch.stack, one.branch.layer_index), shared[key])
        if one.scales.layer_skip_scale:
            shared[key].layer_start, start.keeps_layer_input = start, True
    if wirings and wirings[0].is_pre_source:
        for path in final_norms.values():
            if path is not None:
                model.set_submodule(path, Tap())


def _wire(model: nn.Module, one: RewiredBranch, scales_of_layer: dict[tuple[str, int], Learned]) -> Wiring:
    branch, scales = one.branch, one.scales
    norm = model.get_submodule(one.norm_path)
    norms = dict(_fill_slots(norm, one))
    if not norms:
        norm = Tap()
        model.set_submodule(one.norm_path, norm)
    exit_module = model.get_submodule(str(branch.exit))
    learned = _learned(model, exit_module, one, scales_of_layer)
    wiring = Wiring(scales, branch.stack, norms, learned)
    wiring.source = "pre" if one.is_pre_source else "post"
    wiring.branch_index = branch.branch_index
    if scales.skip_learned:
        wiring.learned_skip = _learned_skip(model, exit_module, one)
    as_rewired(exit_module).left.append(wiring)
    standing = as_rewired(norm)
    if one.is_pre_source:
        standing.entered.append(wiring)
        standing.replaces_forward = True
    else:
        standing.closed.append(wiring)
        for path in branch.entries:
            as_rewired(model.get_submodule(path)).entered.append(wiring)
    _mark(model, one)
    return wiring


def _fill_slots(norm: nn.Module, one: RewiredBranch) -> Iterator[tuple[str, nn.Module]]:
    """The model's own norm for the first slot, copies for further ones, which become its children."""
    slots = [slot for slot in SLOTS if slot in one.scales.norm_slots]
    plain = copy.deepcopy(norm)
    for position, slot in enumerate(slots):
        if position == 0:
            yield slot, norm
        else:
            further = copy.deepcopy(plain)
            norm.add_module(f"kilolayer_{slot}_norm", further)
            yield slot, further
    if one.adds_final_norm:
        further = copy.deepcopy(plain)
        norm.add_module("kilolayer_final_norm", further)
        yield "final", further


def _learned(
    model: nn.Module, exit_module: nn.Module, one: RewiredBranch, scales_of_layer: dict[tuple[str, int], Learned]
) -> Learned | None:
    scales, branch = one.scales, one.branch
    if not scales.learned:
        return None
    layer = (branch.stack, branch.layer_index)
    if scales.learned_per == "layer" and layer in scales_of_layer:
        return scales_of_layer[layer]
    weight, dim = _last_matrix(model, one)
    size = weight.shape[dim] if scales.learned_per == "channel" else 1
    name = f"kilolayer_branch_scale{branch.branch_index}"
    value = torch.full((size,), scales.branch_scale, dtype=weight.dtype, device=weight.device)
    exit_module.register_parameter(name, nn.Parameter(value))
    scales_of_layer[layer] = (exit_module, name)
    return scales_of_layer[layer]


def _learned_skip(model: nn.Module, exit_module: nn.Module, one: RewiredBranch) -> Learned:
    weight, dim = _last_matrix(model, one)
    name = f"kilolayer_skip_scale{one.branch.branch_index}"
    value = torch.full((weight.shape[dim],), one.scales.skip_scale, dtype=weight.dtype, device=weight.device)
    exit_module.register_parameter(name, nn.Parameter(value))
    return exit_module, name


def _last_matrix(model: nn.Module, one: RewiredBranch) -> tuple[Tensor, int]:
    """The branch's last matrix and the dimension of its outputs."""
    last = one.branch.matrices[-1]
    return model.get_parameter(last.weight), last.dim


def _mark(model: nn.Module, one: RewiredBranch) -> None:
    """Let the branch's last matrix be saved in a shape that only a rewired model takes, and give it its inner norm."""
    weight = one.branch.matrices[-1].weight
    path, _, leaf = weight.rpartition(".")
    rewired = as_rewired(model.get_submodule(path))
    if leaf not in rewired.marked:
        rewired.marked.append(leaf)
    if "inner" not in one.scales.norm_slots or "kilolayer_inner_norm" in rewired._modules:
        return
    if one.branch.ending is None or one.branch.ending.carrier != path:
        raise Refusal(
            f"{path} is not called as a module, so no norm can stand in front of it; {one.branch.name} cannot become "
            f"{one.scales.norm_placement}; build the model with kilolayer.nn"
        )
    tensor, dim = _last_matrix(model, one)
    kind = nn.RMSNorm if one.branch.norm_kind == "rms" else nn.LayerNorm
    rewired.kilolayer_inner_norm = kind(tensor.shape[1 - dim], device=tensor.device, dtype=tensor.dtype)


@contextmanager
def watch_wirings(model: nn.Module, network: Network) -> Iterator[Callable[[], float]]:
    """Within, every wiring notes the stream it is given and the one it should leave; yields how far they differ.

    What one branch should leave is what the next one, or the norm that ends the stack, is given.
    """
    streams: dict[str, list[tuple[Tensor, Tensor | None]]] = {}
    wirings = wirings_of(model)
    handles = []
    for wiring in wirings:
        wiring.seen = streams.setdefault(wiring.stack, [])
    for stack, path in network.final_norms.items():
        if path is not None and stack in streams:
            note = _Note(streams[stack])
            handles.append(model.get_submodule(path).register_forward_pre_hook(note))
    try:
        yield lambda: max((_distance(seen) for seen in streams.values()), default=0.0)
    finally:
        for wiring in wirings:
            wiring.seen = None
        for handle in handles:
            handle.remove()


class _Note:
    def __init__(self, stream: list[tuple[Tensor, Tensor | None]]):
        self._stream = stream

    def __call__(self, module: nn.Module, args: Any) -> None:
        self._stream.append((args[0].detach(), None))


def _distance(stream: list[tuple[Tensor, Tensor | None]]) -> float:
    worst = 0.0
    for (_, expected), (found, _) in pairwise(stream):
        if expected is not None:
            scale = max(1.0, float(expected.abs().max()))
            worst = max(worst, float((expected.double() - found.double()).abs().max()) / scale)
    return worst
