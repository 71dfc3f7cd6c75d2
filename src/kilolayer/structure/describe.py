"""Describe one residual sum as a :class:`Branch`: path, factors, contents."""

from __future__ import annotations

import math

from kilolayer.structure.chains import Family
from kilolayer.structure.contents import name_activations, read_attention
from kilolayer.structure.finder import SiteFinder
from kilolayer.structure.graph import Graph
from kilolayer.structure.placement import Placement
from kilolayer.structure.signal import Factor, Signal
from kilolayer.structure.sites import branch_maker
from kilolayer.structure.structure import Branch, Scale
from kilolayer.structure.sums import ResidualSum


def describe_branch(
    finder: SiteFinder, family: Family, one: ResidualSum, placement: Placement, *, index: int
) -> Branch:
    """Everything that is read of one residual sum."""
    signal, graph = finder.signal, finder.graph
    call = graph.calls[graph.nodes[one.node].call]
    skip_factor = one.skip_factor.times(placement.sum_factor)
    branch_factor = one.branch_factor.times(placement.sum_factor)
    maker = branch_maker(finder, one)
    return Branch(
        index=index,
        path=call.path,
        call=max(call.number, 0),
        kind="long" if family.is_long(one.node) else one.kind,
        norm_placement=placement.name,
        norm_kind=placement.norm_kind,
        skip_scale=_scale(skip_factor),
        branch_scale=_scale(branch_factor),
        skip_parameters=_parameters(graph, skip_factor),
        branch_parameters=_parameters(graph, branch_factor),
        skip_value=_value(graph, skip_factor),
        branch_value=_value(graph, branch_factor),
        branch_entries=max((math.prod(graph.nodes[node].shape) for node in branch_factor.parameters), default=0),
        norm_scale=_norm_scale(signal, one, placement),
        branch_path=None if maker is None else graph.calls[maker].path,
        activations=name_activations(signal, one.region),
        attention=read_attention(signal, one.region),
        chain=family.chain_number(one.node),
        confidence=placement.confidence,
    )


def _scale(factor: Factor) -> Scale:
    return "learned" if factor.parameters else factor.constant


def _parameters(graph: Graph, factor: Factor) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for one in factor.parameters for name in graph.parameter_names(one)))


def _value(graph: Graph, factor: Factor) -> float | None:
    value = factor.constant
    for one in factor.parameters:
        mean = graph.mean(one)
        if mean is None:
            return None
        value *= mean
    return value


def _norm_scale(signal: Signal, one: ResidualSum, placement: Placement) -> float:
    """A constant that all the branch reads of its pre-norm is multiplied with."""
    norm = placement.norms.get("pre")
    readers = [] if norm is None else signal.ahead(norm.output, within=one.region)
    if len(readers) != 1:
        return 1.0
    node = signal.nodes[readers[0]]
    return node.constant if node.op == "scale" and node.parameter is None else 1.0
