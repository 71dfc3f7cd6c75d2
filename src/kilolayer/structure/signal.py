"""Walk along the signal: back through what only reshapes or multiplies it, and ahead to what reads it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kilolayer.structure import ops
from kilolayer.structure.graph import Graph, Node
from kilolayer.structure.norms import Norm


@dataclass(frozen=True)
class Factor:
    """What a signal was multiplied with: a constant, and parameters (nodes)."""

    constant: float = 1.0
    parameters: tuple[int, ...] = ()

    def times(self, constant: float, parameter: int | None = None) -> Factor:
        """This factor, further multiplied."""
        return Factor(self.constant * constant, (*self.parameters, *(() if parameter is None else (parameter,))))


class Signal:
    """A graph and its norms, and how the signal goes through them."""

    def __init__(self, graph: Graph, norms: list[Norm]):
        self.graph = graph
        self.norms = norms
        self.norm_at = {norm.output: norm for norm in norms}
        self.norm_of_member = {member: norm for norm in norms for member in norm.members}
        self.nodes = graph.nodes

    def back(self, index: int, *, through_shifts: bool = False) -> Iterator[tuple[int, Factor]]:
        """A node and what it is a view or a multiple of, nearest first, each with the factor so far.

        A norm's output ends the walk: its gain is the norm's.
        """
        factor = Factor()
        undone = 1.0
        while True:
            yield index, factor
            node = self.nodes[index]
            if index in self.norm_at:
                return
            if node.op == "view":
                index = node.inputs[0]
            elif node.op == "scale" and node.carrier is not None:
                constant = self._without_keep_rate(node, undone)
                undone = node.constant if node.parameter is None else 1.0
                factor = factor.times(constant, node.parameter)
                index = node.carrier
            elif node.op == "shift" and node.carrier is not None and (through_shifts or _adds_nothing(node)):
                factor = factor.times(node.constant)
                index = node.carrier
            else:
                return

    def _without_keep_rate(self, node: Node, constant_ahead: float) -> float:
        """The constant of a node, 1 / constant_ahead at a random mask: dropout divides by its keep rate beside it."""
        if node.arguments.get("is_random"):
            return 1 / constant_ahead if constant_ahead > 1 else 1.0
        carrier = self.nodes[node.carrier] if node.carrier is not None else node
        beside_mask = any(self.nodes[user].arguments.get("is_random") for user in self.graph.users[node.index])
        return 1.0 if beside_mask and node.constant > 1 and carrier.kind == "data" else node.constant

    def ahead(self, index: int, *, within: frozenset[int] | None = None) -> list[int]:
        """The nodes that read a node, looked for behind views; views that nobody reads are left out."""
        found: list[int] = []
        open_nodes = [index]
        while open_nodes:
            for user in self.graph.users[open_nodes.pop()]:
                if within is not None and user not in within:
                    continue
                if self.nodes[user].op == "view":
                    open_nodes.append(user)
                elif self.nodes[user].kind == "data":
                    found.append(user)
        return sorted(set(found))

    def norms_reading(self, readers: list[int]) -> list[Norm] | None:
        """The norms that readers belong to, ``None`` if one of them belongs to no norm."""
        norms = [self.norm_of_member.get(reader) for reader in readers]
        if any(norm is None for norm in norms):
            return None
        return list(dict.fromkeys(norm for norm in norms if norm is not None))

    def stream_back(self, index: int) -> Iterator[int]:
        """Back along a stream: as :meth:`back`, and through norms, activations, pools and partial writes."""
        while True:
            yield index
            node = self.nodes[index]
            norm = self.norm_at.get(index)
            if norm is not None:
                index = norm.input
            elif node.op in ("view", "merge") or node.op in ops.ACTIVATIONS or node.op in ops.POOLS:
                index = node.inputs[0]
            elif node.op in ("scale", "shift") and node.carrier is not None:
                index = node.carrier
            else:
                return
            if self.nodes[index].kind != "data":
                return


def _adds_nothing(node: Node) -> bool:
    return node.arguments.get("other") in (0, 0.0) or node.arguments.get("self") in (0, 0.0)
