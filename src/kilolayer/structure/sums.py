"""Tell residual sums from all other sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kilolayer.structure import ops
from kilolayer.structure.graph import Graph, Node, Term
from kilolayer.structure.signal import Factor, Signal

SumKind = Literal["identity", "parallel", "projection"]


@dataclass(frozen=True)
class ResidualSum:
    """One residual sum: ``skip_factor * source + branch_factor * branch``.

    Attributes:
        node: the sum.
        source: what the branch reads and the skip carries.
        skip: the skip's operand of the sum.
        branch: the branch's operand of the sum.
        region: the nodes on the ways from the source to the branch's operand.
        kind: ``identity``; ``parallel`` to a sum that the skip's operand comes from; ``projection`` where a
            matrix stands on the skip.
    """

    node: int
    source: int
    skip: int
    branch: int
    skip_factor: Factor
    branch_factor: Factor
    region: frozenset[int]
    kind: SumKind = "identity"


def find_sums(signal: Signal) -> list[ResidualSum]:
    """The residual sums, in order, before any is rejected for what its result does."""
    found: dict[int, ResidualSum] = {}
    for node in signal.nodes:
        if not node.terms or node.index in signal.norm_of_member or not is_plain_sum(signal.graph, node):
            continue
        residual = _identity(signal, node) or _parallel(signal, node, found) or _projection(signal, node)
        if residual is not None:
            found[node.index] = residual
    return list(found.values())


def is_plain_sum(graph: Graph, node: Node) -> bool:
    """Both terms are signals of the sum's own shape: no bias, position table, mask or statistic."""
    return node.is_float and all(
        graph.nodes[term.node].kind == "data"
        and graph.nodes[term.node].is_float
        and graph.nodes[term.node].shape == node.shape
        for term in node.terms
    )


def _orders(node: Node) -> tuple[tuple[Term, Term], tuple[Term, Term]]:
    first, second = node.terms
    return (first, second), (second, first)


def _identity(signal: Signal, node: Node) -> ResidualSum | None:
    for skip, branch in _orders(node):
        for source, factor in signal.back(skip.node):
            if signal.nodes[source].kind != "data":
                break
            region = signal.graph.between(source, branch.node)
            if not region:
                continue
            if has_branch(signal, region - {source}):
                return _residual(signal, node, (skip, branch), source, factor, region)
            break
    return None


def has_branch(signal: Signal, nodes: frozenset[int]) -> bool:
    """Whether something a branch is made for happens: a learned matrix, a norm, attention, a transform."""
    return any(
        signal.graph.is_learned_matrix(index)
        or index in signal.norm_at
        or signal.nodes[index].op in ops.ATTENTION
        or signal.nodes[index].op in ops.SOFTMAX
        or signal.nodes[index].op in ops.RECURRENT
        or signal.nodes[index].op in ops.FOURIER
        or signal.nodes[index].opaque is not None
        for index in nodes
    )


def _residual(
    signal: Signal,
    node: Node,
    terms: tuple[Term, Term],
    source: int,
    skip_factor: Factor,
    region: frozenset[int],
    kind: SumKind = "identity",
) -> ResidualSum:
    skip, branch = terms
    branch_factor = _factor_at_end(signal, source, branch.node)
    return ResidualSum(
        node.index,
        source,
        skip.node,
        branch.node,
        skip_factor.times(skip.constant, skip.parameter),
        branch_factor.times(branch.constant, branch.parameter),
        region,
        kind,
    )


def _factor_at_end(signal: Signal, source: int, index: int) -> Factor:
    """The factor between the branch's last operation and the sum; behind a ``cat``, that of the part worked on."""
    *_, (end, factor) = signal.back(index, through_shifts=True)
    if signal.nodes[end].op != "cat":
        return factor
    parts = [
        one
        for one in signal.graph.data_inputs(end)
        if one >= source and has_branch(signal, signal.graph.between(source, one) - {source})
    ]
    if len(parts) != 1:
        return factor
    inner = _factor_at_end(signal, source, parts[0])
    return Factor(factor.constant * inner.constant, factor.parameters + inner.parameters)


def _parallel(signal: Signal, node: Node, found: dict[int, ResidualSum]) -> ResidualSum | None:
    """A second branch beside an earlier one: ``(x + f(x)) + g(x)``."""
    for skip, branch in _orders(node):
        for index, factor in signal.back(skip.node):
            earlier = found.get(index)
            if earlier is None:
                continue
            region = signal.graph.between(earlier.source, branch.node)
            if region and has_branch(signal, region - {earlier.source}):
                return _residual(signal, node, (skip, branch), earlier.source, factor, region, "parallel")
    return None


def _projection(signal: Signal, node: Node) -> ResidualSum | None:
    """A skip with one matrix on it, where the shape changes, beside a branch that has an activation."""
    first, second = (term.node for term in node.terms)
    source = nearest_common_source(signal.graph, first, second)
    if source is None:
        return None
    for skip, branch in _orders(node):
        on_skip = signal.graph.between(source, skip.node) - {source}
        region = signal.graph.between(source, branch.node)
        if _is_projection(signal, on_skip) and _is_nonlinear(signal, region - {source}):
            return _residual(signal, node, (skip, branch), source, Factor(), region, "projection")
    return None


def nearest_common_source(graph: Graph, first: int, second: int) -> int | None:
    """The latest node that both nodes were computed from."""
    marks = {first: 1, second: 2}
    open_nodes = {first, second}
    while open_nodes:
        index = max(open_nodes)
        open_nodes.remove(index)
        if marks[index] == 3:
            return index
        for source in graph.data_inputs(index):
            marks[source] = marks.get(source, 0) | marks[index]
            open_nodes.add(source)
    return None


def _is_projection(signal: Signal, nodes: frozenset[int]) -> bool:
    matrices = sum(signal.graph.is_learned_matrix(index) for index in nodes)
    return (
        matrices == 1
        and not _is_nonlinear(signal, nodes)
        and not any(
            signal.nodes[index].arguments.get("view")
            in ("select", "split", "split_with_sizes", "unbind", "slice", "chunk")
            for index in nodes
        )
    )


def _is_nonlinear(signal: Signal, nodes: frozenset[int]) -> bool:
    return any(
        signal.nodes[index].op in ops.ACTIVATIONS
        or signal.nodes[index].op in ops.ATTENTION
        or signal.nodes[index].op in ops.SOFTMAX
        for index in nodes
        if index not in signal.norm_of_member
    )
