"""The record as a graph of values: what each is made of, and whether it carries the signal."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch

from kilolayer.structure import ops
from kilolayer.structure.factors import read_mean
from kilolayer.structure.record import Call

Kind = Literal["data", "mask", "parameter", "constant", "random"]
"""What went into a value: ``data`` a float input, or an input and a parameter; ``mask`` inputs that are no floats,
as indices and masks; ``parameter`` parameters without inputs; ``random`` drawn numbers alone; ``constant`` nothing."""


@dataclass(frozen=True)
class Term:
    """One term of a sum: a node times a constant, times a parameter where there is one."""

    node: int
    constant: float = 1.0
    parameter: int | None = None


@dataclass(slots=True)
class Node:
    """One value.

    ``op`` is the name of the operation in normal form: ``add`` for two terms that both carry the signal,
    ``scale`` and ``shift`` for a signal times or plus something that does not, ``view`` for the same numbers.
    Of these, ``carrier`` is the signal; ``constant`` and ``parameter`` are what it is multiplied with.
    """

    index: int
    op: str
    inputs: tuple[int, ...]
    kind: Kind
    shape: tuple[int, ...]
    is_float: bool
    call: int
    arguments: dict[str, Any] = field(default_factory=dict)
    output: int = 0
    name: str | None = None
    tensor: torch.Tensor | None = None
    mean: float | None = None
    terms: tuple[Term, ...] = ()
    carrier: int | None = None
    constant: float = 1.0
    parameter: int | None = None
    is_whole: bool = False
    opaque: str | None = None


@dataclass
class Graph:
    """Nodes in order of execution: a node's inputs come before it."""

    nodes: list[Node]
    calls: list[Call]
    outputs: list[int]
    node_of_value: list[int]

    @cached_property
    def users(self) -> list[list[int]]:
        """For each node, the nodes that read it; statistics that a hook takes, which reach no output, do not count."""
        users: list[list[int]] = [[] for _ in self.nodes]
        for node in self.nodes:
            for source in dict.fromkeys(node.inputs) if node.index in self._alive else ():
                users[source].append(node.index)
        return users

    @cached_property
    def _alive(self) -> Container[int]:
        """The nodes that an output was computed from; all, where the outputs are of a kind that is not known."""
        if not self.outputs:
            return range(len(self.nodes))
        found = set(self.outputs)
        for node in reversed(self.nodes):
            if node.index in found:
                found.update(node.inputs)
        return found

    def data_inputs(self, index: int) -> Iterator[int]:
        """The inputs of a node that carry the signal."""
        return (source for source in self.nodes[index].inputs if self.nodes[source].kind == "data")

    def depends(self, index: int, on: int) -> bool:
        """Whether a node was computed from another one."""
        return on in self.ancestors(index, down_to=on)

    def ancestors(self, index: int, *, down_to: int) -> set[int]:
        """The nodes a node was computed from, itself among them, none older than ``down_to``."""
        found = {index}
        open_nodes = [index]
        while open_nodes:
            for source in self.data_inputs(open_nodes.pop()):
                if source >= down_to and source not in found:
                    found.add(source)
                    open_nodes.append(source)
        return found

    def between(self, source: int, target: int) -> frozenset[int]:
        """The nodes on the ways from one node to another, both included; empty if there is no way."""
        behind = self.ancestors(target, down_to=source)
        if source not in behind:
            return frozenset()
        reached = {source}
        for index in sorted(behind):
            if any(one in reached for one in self.nodes[index].inputs):
                reached.add(index)
        return frozenset(reached)

    def is_learned_matrix(self, index: int) -> bool:
        """Whether the node multiplies the signal with a matrix or a kernel of parameters."""
        node = self.nodes[index]
        return node.op in ops.MATRICES and any(self.nodes[one].kind == "parameter" for one in node.inputs)

    def mean(self, index: int) -> float | None:
        """The mean of a node that no input had a part in; ``None`` where its numbers are not known."""
        return mean_of(self.nodes, index)

    def parameter_names(self, index: int) -> tuple[str, ...]:
        """The parameters that went into a node made of parameters."""
        node = self.nodes[index]
        if not node.inputs:
            return (node.name,) if node.name is not None else ()
        names = [name for one in node.inputs for name in self.parameter_names(one)]
        return tuple(dict.fromkeys(names))

    def whole(self, index: int) -> int:
        """The node that a node is a mere view of, every number kept."""
        while self.nodes[index].op == "view" and self.nodes[index].is_whole:
            index = self.nodes[index].inputs[0]
        return index


def mean_of(nodes: Sequence[Node], index: int) -> float | None:
    """:meth:`Graph.mean`, for a graph in the making."""
    node = nodes[index]
    while node.mean is None and node.op in ops.WHOLE_VIEWS and node.inputs:
        node = nodes[node.inputs[0]]
    return read_mean(node.tensor) if node.mean is None and node.tensor is not None else node.mean
