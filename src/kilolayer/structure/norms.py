"""Find the norms of a graph: fused ones by name, hand-written ones by what they compute.

A norm divides a signal by a statistic of itself: ``u * v`` or ``u / v`` where v is made from u by a reduction
and a root, so that the result does not change when u is multiplied by a number. That is checked by counting
powers, see :class:`_Statistic`. Where u is a signal less its own mean, the norm is a layer norm.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kilolayer.structure import ops
from kilolayer.structure.graph import Graph, Node


@dataclass(frozen=True)
class Norm:
    """One norm: the node it reads, the node it makes (affine part included), and what lies between."""

    kind: str
    input: int
    output: int
    members: frozenset[int]


def find_norms(graph: Graph) -> list[Norm]:
    """Every norm of the graph, in order."""
    found: list[Norm] = []
    inside: set[int] = set()
    for node in graph.nodes:
        if node.kind != "data" or node.output != 0 or node.index in inside:
            continue
        norm = _fused(graph, node) or _written_out(graph, node)
        if norm is not None:
            found.append(norm)
            inside |= norm.members
    return found


def _fused(graph: Graph, node: Node) -> Norm | None:
    kind = ops.FUSED_NORMS.get(node.op)
    if kind is None or graph.nodes[node.inputs[0]].kind != "data":
        return None
    source = graph.nodes[node.inputs[0]]
    if kind == "batch" and _folds_batch_into_channels(graph, source):
        kind = "instance"
    siblings = {one for one in graph.users[node.inputs[0]] if graph.nodes[one].inputs == node.inputs}
    has_affine = any(graph.nodes[one].kind == "parameter" for one in node.inputs)
    output, members = (node.index, set()) if has_affine else _absorb_affine(graph, node.index)
    return Norm(kind, source.index, output, frozenset(members | siblings | {node.index}))


def _folds_batch_into_channels(graph: Graph, source: Node) -> bool:
    """An instance norm is a batch norm of one sample with a channel for every sample and channel."""
    if source.op != "view" or len(source.shape) < 2 or source.shape[0] != 1:
        return False
    before = graph.nodes[source.inputs[0]].shape
    return len(before) >= 2 and before[0] * before[1] == source.shape[1] and before[1] != source.shape[1]


def _written_out(graph: Graph, node: Node) -> Norm | None:
    if node.op not in ("mul", "div", "true_divide") or len(node.inputs) != 2:
        return None
    first, second = node.inputs
    orders = ((first, second, 1.0),) if node.op != "mul" else ((first, second, -1.0), (second, first, -1.0))
    for signal, statistic, wanted_power in orders:
        if _entries(graph, _behind_views(graph, statistic)) >= _entries(graph, signal):
            continue
        source, bases, centering = _bases(graph, signal)
        found = _Statistic(graph, bases)
        if found.power(statistic) != wanted_power or not (found.has_reduction and found.has_root):
            continue
        gain = _gain_first(graph, signal)
        if not centering and found.reached & set(_views_behind(graph, signal)):
            gain = set()  # the statistic is of the signal with the gain: no part of the norm
        output, affine = _absorb_affine(graph, node.index, has_gain=bool(gain))
        kind = "batch" if found.over_batch else "layer" if centering else "rms"
        if source is None:
            source = _before_cast(graph, next(graph.data_inputs(min(gain))) if gain else signal)
        members = found.members | centering | affine | gain | {node.index}
        return Norm(kind, source, output, frozenset(members))
    return None


def _gain_first(graph: Graph, signal: int) -> set[int]:
    """The gain where it stands in front of the division, as in ``gain * (x - mean) / std``."""
    found: set[int] = set()
    index = signal
    while True:
        index = _views_behind(graph, index)[-1]
        node = graph.nodes[index]
        if node.op != "scale" or node.parameter is None or node.carrier is None:
            return found
        found.add(index)
        index = node.carrier


def _bases(graph: Graph, signal: int) -> tuple[int | None, set[int], set[int]]:
    """What the statistic may be taken of: the signal itself, and under a layer norm the signal before centering.

    Returns the node a layer norm reads, all nodes that count as the signal, and those that do the centering.
    """
    same = _views_behind(graph, signal)
    while (node := graph.nodes[same[-1]]).op == "scale" and node.parameter is not None and node.carrier is not None:
        same += _views_behind(graph, node.carrier)
    node = graph.nodes[same[-1]]
    if node.terms and node.terms[0].constant == -node.terms[1].constant:
        whole, mean = node.inputs
        if _entries(graph, mean) < _entries(graph, whole):
            before = _views_behind(graph, whole)
            statistic = _Statistic(graph, {*before, *_casts_ahead(graph, before)})
            if statistic.power(mean) == 1.0 and statistic.has_reduction and not statistic.has_root:
                return before[-1], {*same, *before}, statistic.members | set(same)
    return None, set(same), set()


def _before_cast(graph: Graph, index: int) -> int:
    """What stands before a norm's own change of precision."""
    while graph.nodes[index].arguments.get("view") == "_to_copy":
        index = graph.nodes[index].inputs[0]
    return index


def _views_behind(graph: Graph, index: int) -> list[int]:
    """A node and what it is a whole view of, nearest first."""
    chain = [index]
    while graph.nodes[chain[-1]].op == "view" and graph.nodes[chain[-1]].is_whole:
        chain.append(graph.nodes[chain[-1]].inputs[0])
    return chain


def _casts_ahead(graph: Graph, nodes: list[int]) -> set[int]:
    return {user for one in nodes for user in graph.users[one] if graph.nodes[user].op == "view"}


def _behind_views(graph: Graph, index: int) -> int:
    while graph.nodes[index].op == "view":
        index = graph.nodes[index].inputs[0]
    return index


def _entries(graph: Graph, index: int) -> int:
    return math.prod(graph.nodes[index].shape)


def _absorb_affine(graph: Graph, index: int, *, has_gain: bool = False) -> tuple[int, set[int]]:
    """The node behind a norm's own gain and bias, and the nodes on the way.

    A constant is the norm's own only where a gain follows it, as in ``normalize(x) * sqrt(width) * gain``.
    """
    output, members, pending = index, set[int](), set[int]()
    current = index
    while (reader := _only_reader(graph, current)) is not None:
        node = graph.nodes[reader]
        pending.add(reader)
        current = reader
        if node.op == "shift" and has_gain and _adds_parameter(graph, node):
            return reader, members | pending
        if node.op == "scale" and node.parameter is not None and not has_gain:
            has_gain = True
            output, members = reader, members | pending
        elif not ((node.op == "view" and node.is_whole) or (node.op == "scale" and node.parameter is None)):
            break
    return output, members


def _only_reader(graph: Graph, index: int) -> int | None:
    """What reads a node, if one thing does; a view that nobody reads is no reader."""
    outputs = set(graph.outputs)
    readers = [user for user in graph.users[index] if graph.users[user] or user in outputs]
    return readers[0] if len(readers) == 1 and index not in outputs else None


def _adds_parameter(graph: Graph, node: Node) -> bool:
    return any(graph.nodes[one].kind == "parameter" for one in node.inputs)


class _Statistic:
    """Follows a node back to the signal and counts with what power of the signal it grows.

    ``mean(u^2)`` has power 2, its root power 1, the root's inverse power -1. A step that is none of
    :data:`ops.ELEMENTWISE` and no reduction has no power.
    """

    LARGEST = 32

    def __init__(self, graph: Graph, bases: set[int]):
        self._graph = graph
        self._bases = bases
        self.members: set[int] = set()
        self.reached: set[int] = set()
        self.has_reduction = False
        self.has_root = False
        self.over_batch = False

    def power(self, index: int) -> float | None:
        """The power of the signal in a node, ``None`` if it is no statistic of the signal."""
        if index in self._bases:
            self.reached.add(index)
            return 1.0
        node = self._graph.nodes[index]
        sources = list(self._graph.data_inputs(index))
        if not sources or len(self.members) >= self.LARGEST:
            return None
        self.members.add(index)
        powers = [self.power(source) for source in sources]
        if any(one is None for one in powers):
            return None
        first, last = float(powers[0] or 0), float(powers[-1] or 0)
        if node.op in ops.REDUCTIONS:
            return self._reduce(node, first)
        if node.op in ("mul", "div", "true_divide") and len(powers) == 2:
            return first + last if node.op == "mul" else first - last
        if node.op in ("add", "maximum", "minimum"):
            return first if first == last else None
        if node.op in ("view", "scale", "shift", "abs", "clamp", "clamp_min", "clamp_max"):
            return first
        return self._power_of(node, first)

    def _reduce(self, node: Node, power: float) -> float:
        self.has_reduction = True
        self.has_root |= node.op in ops.ROOTED_REDUCTIONS
        dims = node.arguments.get("dim")
        rank = len(self._graph.nodes[node.inputs[0]].shape)
        listed = [dims] if isinstance(dims, int) else list(dims or range(rank))
        self.over_batch |= rank > 1 and 0 in [dim % rank for dim in listed] and len(listed) < rank
        takes_square = node.op == "var" or (node.op == "var_mean" and node.output == 0)
        return 2 * power if takes_square else power

    def _power_of(self, node: Node, power: float) -> float | None:
        exponents = {"sqrt": 0.5, "rsqrt": -0.5, "reciprocal": -1.0, "square": 2.0, "neg": 1.0}
        exponent = exponents.get(node.op)
        if node.op == "pow" and isinstance(node.arguments.get("exponent"), (int, float)):
            exponent = float(node.arguments["exponent"])
        if exponent is None:
            # A constant over a statistic.
            return None
        self.has_root |= abs(exponent) == 0.5
        return power * exponent
