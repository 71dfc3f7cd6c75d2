"""How a branch ends: in matrices and additions, so that a factor on its output is one on their parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from kilolayer.convert.branches import Ending
from kilolayer.convert.parameter_names import Names
from kilolayer.structure.graph import Graph
from kilolayer.structure.signal import Signal
from kilolayer.structure.sites import SiteFinder
from kilolayer.structure.sums import ResidualSum


def find_ending(finder: SiteFinder, one: ResidualSum, names: Names) -> Ending | str:
    """The parameters that the output of a branch is proportional to, or the reason why there are none."""
    walk = _Walk(finder.signal, one, names)
    problem = walk.run()
    if problem is not None:
        return problem
    return Ending(
        tuple(walk.parameters), _carrier(finder, one, walk), tuple(walk.uses[name] for name in walk.parameters)
    )


class _Walk:
    """From a branch's output back to its last matrices, through what keeps it proportional to them."""

    def __init__(self, signal: Signal, one: ResidualSum, names: Names):
        self._signal = signal
        self._one = one
        self._names_of = names
        self.behind: set[int] = set()
        self.matrices: set[int] = set()
        self.parameters: list[str] = []
        self.uses: Counter[str] = Counter()

    def run(self) -> str | None:
        """Walk; what stands in the way, if anything does."""
        open_nodes = [self._one.branch]
        while open_nodes:
            index = open_nodes.pop()
            if index in self.behind or index in self.matrices:
                continue
            if index not in self._one.region or index == self._one.source:
                return "the branch adds a signal from elsewhere behind its last matrix"
            node = self._signal.nodes[index]
            if self._signal.graph.is_learned_matrix(index):
                self.matrices.add(index)
                self._take(index)
            elif index in self._signal.norm_at or index in self._signal.norm_of_member:
                return "a norm ends the branch, so a factor in front of it does nothing"
            elif node.op == "view" or (node.op == "scale" and node.carrier is not None):
                self.behind.add(index)
                open_nodes.append(node.inputs[0] if node.op == "view" else self._carried(index))
            elif node.op == "shift" and node.carrier is not None:
                self.behind.add(index)
                if not self._take(index):
                    return "something that is no parameter is added behind the last matrix"
                open_nodes.append(self._carried(index))
            elif node.op == "add":
                self.behind.add(index)
                open_nodes += [term.node for term in node.terms]
            else:
                return f"the branch does not end in a matrix: {node.op} stands behind it"
        return None

    def _carried(self, index: int) -> int:
        carrier = self._signal.nodes[index].carrier
        assert carrier is not None
        return carrier

    def _take(self, index: int) -> bool:
        names = list(self._parameters_of(index))
        self.parameters += [name for name in names if name not in self.parameters]
        self.uses.update(names)
        return bool(names)

    def _parameters_of(self, index: int) -> Iterator[str]:
        graph = self._signal.graph
        sources = [source for source in graph.nodes[index].inputs if graph.nodes[source].kind == "parameter"]
        # The matrix first, its bias behind it.
        for source in sorted(sources, key=lambda source: -len(graph.nodes[source].shape)):
            yield from self._names_of(source)


def count_uses(graph: Graph, names: Names) -> Counter[str]:
    """How often each parameter meets the signal."""
    return Counter(
        name
        for node in graph.nodes
        if node.kind == "data"
        for name in {name for source in node.inputs for name in names(source)}
    )


def _carrier(finder: SiteFinder, one: ResidualSum, walk: _Walk) -> str | None:
    """The innermost module around the last matrix that returns what is behind it and does not hold the sum."""
    graph = finder.graph
    around = set(finder.calls_around(graph.nodes[one.node].call))
    shared = walk.behind | walk.matrices
    if len(walk.matrices) == 1:
        (matrix,) = walk.matrices
        for call in finder.calls_around(graph.nodes[matrix].call):
            output = graph.calls[call].output
            if call not in around and output is not None and graph.node_of_value[output] in shared:
                return graph.calls[call].path
    makers = [
        number
        for number, call in enumerate(graph.calls)
        if number not in around and call.output is not None and graph.node_of_value[call.output] == one.branch
    ]
    return graph.calls[makers[0]].path if makers else None
