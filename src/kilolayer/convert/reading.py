"""Read the residual branches of any model from one forward pass: their sums, last matrices, norms and roles."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from kilolayer.convert.branches import Ending, FoundBranch, Network, Refusal
from kilolayer.convert.endings import count_uses, find_ending
from kilolayer.convert.matrices import find_matrices
from kilolayer.convert.parameter_names import Names, name_parameters
from kilolayer.schemes import Depth, Stack
from kilolayer.structure.depths import depth_of_chains
from kilolayer.structure.describe import describe_branch
from kilolayer.structure.graph import Graph
from kilolayer.structure.normal_form import build_graph
from kilolayer.structure.norms import Norm, find_norms
from kilolayer.structure.placement import Placement, final_norm, place_norms
from kilolayer.structure.read import record_forward
from kilolayer.structure.rejects import keep_residuals
from kilolayer.structure.signal import Signal
from kilolayer.structure.sites import SiteFinder
from kilolayer.structure.structure import Branch
from kilolayer.structure.sums import ResidualSum, find_sums


@dataclass(frozen=True)
class _Reading:
    """Everything one forward pass shows of a model."""

    model: nn.Module
    finder: SiteFinder
    sums: Sequence[ResidualSum]
    branches: tuple[Branch, ...]
    chains: tuple[tuple[int, ...], ...]
    placements: dict[int, Placement]
    final_norms: tuple[str | None, ...]
    names: Names

    @property
    def graph(self) -> Graph:
        return self.finder.graph


def read_network(model: nn.Module, inputs: Any) -> Network:
    """The residual branches of a model that nobody here wrote, in order of execution.

    Raises:
        Refusal: no residual sum, an operation that cannot be seen into, or streams that are neither one stack nor
            an encoder and a decoder.
    """
    reading = _read(model, inputs)
    if opaque := next((node.opaque for node in reading.graph.nodes if node.opaque is not None), None):
        raise Refusal(f"{type(model).__name__} runs {opaque}, which cannot be seen into; convert the model without it")
    if not reading.branches:
        raise Refusal(f"{type(model).__name__} has no residual sum, so there is nothing a scheme could change")
    depth, stacks = depth_of_chains(reading.branches, reading.chains)
    if depth is None:
        raise Refusal(
            f"{type(model).__name__} has {len(reading.chains)} streams of residual sums; a scheme knows the depth of "
            "one stack, or of an encoder and a decoder"
        )
    places = _places(reading.chains, stacks, depth)
    found = tuple(_found_branch(reading, index, places[index]) for index in range(len(reading.branches)))
    found = tuple(_without_other_uses(reading, found))
    return Network(depth, found, dict(zip(stacks, reading.final_norms, strict=True)))


def _without_other_uses(reading: _Reading, found: Sequence[FoundBranch]) -> Iterator[FoundBranch]:
    """The branches, but that nothing is folded into a parameter that is used anywhere else than at their ends."""
    total = count_uses(reading.graph, reading.names)
    here: Counter[str] = Counter()
    for branch in found:
        if branch.ending is not None:
            here.update(dict(zip(branch.ending.parameters, branch.ending.uses, strict=True)))
    for branch in found:
        names = () if branch.ending is None else branch.ending.parameters
        elsewhere = next((name for name in names if total[name] != here[name]), None)
        if elsewhere is None:
            yield branch
        else:
            problem = f"{elsewhere} is used elsewhere too, which a factor on it would change"
            yield dataclasses.replace(branch, ending=None, ending_problem=problem)


def _read(model: nn.Module, inputs: Any) -> _Reading:
    graph = build_graph(record_forward(model, inputs))
    signal = Signal(graph, find_norms(graph))
    family = keep_residuals(signal, find_sums(signal))
    placements = place_norms(signal, family)
    finder = SiteFinder(signal)
    branches = tuple(
        describe_branch(finder, family, one, placements[one.node], index=index) for index, one in enumerate(family.sums)
    )
    index_at = {one.node: index for index, one in enumerate(family.sums)}
    chains = tuple(tuple(index_at[one.node] for one in chain) for chain in family.chains)
    ends = tuple(final_norm(signal, family, placements, chain) for chain in family.chains)
    paths = tuple(None if norm is None else _norm_path(graph, norm) for norm in ends)
    return _Reading(model, finder, family.sums, branches, chains, placements, paths, name_parameters(graph))


def _places(
    chains: Sequence[Sequence[int]], stacks: Sequence[Stack], depth: Depth
) -> dict[int, tuple[Stack, int, int]]:
    """For each branch its stack, its index there, and its layer."""
    return {
        branch: (stack, position, position // depth.branches_per_layer(stack))
        for stack, chain in zip(stacks, chains, strict=True)
        for position, branch in enumerate(chain)
    }


def _found_branch(reading: _Reading, index: int, place: tuple[Stack, int, int]) -> FoundBranch:
    branch, one = reading.branches[index], reading.sums[index]
    stack, position, layer_index = place
    norms = reading.placements[one.node].norms
    ending = find_ending(reading.finder, one, reading.names)
    entries, exit_path = _entries(reading.finder, one, norms.get("pre")), _exit(reading.finder, one)
    post = norms.get("post")
    return FoundBranch(
        path=branch.path,
        stack=stack,
        branch_index=position,
        layer_index=layer_index,
        kind=branch.kind,
        norm_placement=branch.norm_placement,
        norm_kind=branch.norm_kind,
        skip_scale=branch.skip_scale,
        branch_scale=branch.branch_scale,
        has_attention=branch.attention is not None,
        is_cross_attention=_reads_memory(reading, one),
        norms={slot: _norm_path(reading.graph, norm) for slot, norm in norms.items()},
        eps=None if post is None else _eps(reading, post),
        ending=ending if isinstance(ending, Ending) else None,
        ending_problem=None if isinstance(ending, Ending) else ending,
        matrices=find_matrices(reading.finder.signal, one, reading.model, names=reading.names),
        entries=entries,
        exit=exit_path,
    )


def _norm_path(graph: Graph, norm: Norm) -> str:
    return graph.calls[graph.nodes[norm.output].call].path


def _eps(reading: _Reading, norm: Norm) -> float | None:
    node = reading.graph.nodes[norm.output]
    eps = node.arguments.get("eps")
    if eps is None:
        module = reading.model.get_submodule(_norm_path(reading.graph, norm))
        eps = getattr(module, "eps", getattr(module, "variance_epsilon", None))
    return eps if isinstance(eps, float) else None


def _reads_memory(reading: _Reading, one: ResidualSum) -> bool:
    """Whether a branch also reads an earlier chain's end, as cross-attention does."""
    own = reading.branches[reading.sums.index(one)].chain
    earlier = {
        reading.sums[index].node for number, chain in enumerate(reading.chains) if number < own for index in chain
    }
    if not earlier or own == 0:
        return False
    graph = reading.graph
    feeds = {source for index in one.region - {one.source} for source in graph.data_inputs(index)} - one.region
    return any(earlier & graph.ancestors(source, down_to=min(earlier)) for source in feeds)


def _entries(finder: SiteFinder, one: ResidualSum, pre: Norm | None) -> tuple[str, ...]:
    """The modules that a branch's input goes into: its pre-norm, or the outermost that do not hold the sum."""
    graph = finder.graph
    if pre is not None and graph.whole(pre.input) == graph.whole(one.source):
        return (_norm_path(graph, pre),)
    around = set(finder.calls_around(graph.nodes[one.node].call))
    found: dict[str, None] = {}
    views, users = [one.source], list[int]()
    while views:
        for user in graph.users[views.pop()]:
            if user in one.region:
                (views if graph.nodes[user].op == "view" else users).append(user)
    for user in sorted(users):
        outside = [call for call in finder.calls_around(graph.nodes[user].call) if call not in around]
        found[graph.calls[outside[-1]].path if outside else ""] = None
    return tuple(found)


def _exit(finder: SiteFinder, one: ResidualSum) -> str | None:
    """The last module that returns the branch's output as the sum takes it, outside of the sum's own."""
    graph = finder.graph
    around = set(finder.calls_around(graph.nodes[one.node].call))
    whole = graph.whole(one.branch)
    makers = [
        number
        for number, call in enumerate(graph.calls)
        if number not in around
        and call.output is not None
        and graph.whole(graph.node_of_value[call.output]) == whole
        and one.source not in (graph.whole(graph.node_of_value[call.output]),)
    ]
    outermost = [number for number in makers if graph.calls[number].parent not in makers]
    return graph.calls[outermost[-1]].path if outermost else None
