"""Weights that run again on what came of their own run before: recurrent networks and shared layers."""

from __future__ import annotations

from kilolayer.structure import ops
from kilolayer.structure.graph import Graph
from kilolayer.structure.structure import Recurrence


def find_recurrences(graph: Graph) -> tuple[Recurrence, ...]:
    """Every module that does so, outermost only, and how often it runs."""
    found: dict[str, int] = {}
    for node in graph.nodes:
        if node.op in ops.RECURRENT and node.op not in ops.RECURRENT_CELLS and node.output == 0:
            found.setdefault(graph.calls[node.call].path, _num_steps(graph, node.index))
    for uses in _uses_of_matrices(graph).values():
        # The first run may start from zeros, on which no input has had a part.
        with_signal = [use for use in uses if graph.nodes[use].kind == "data"]
        if len(with_signal) > 1 and _feeds(graph, with_signal):
            path, times = _owner(graph, uses)
            found[path] = max(times, found.get(path, 0))
    return tuple(Recurrence(path, times) for path, times in found.items())


def _num_steps(graph: Graph, index: int) -> int:
    shape = graph.nodes[graph.nodes[index].inputs[0]].shape
    return shape[0] if shape else 1


def _uses_of_matrices(graph: Graph) -> dict[int, list[int]]:
    uses: dict[int, list[int]] = {}
    for node in graph.nodes:
        if graph.is_learned_matrix(node.index) or node.op in ops.RECURRENT_CELLS:
            for one in node.inputs:
                if graph.nodes[one].kind == "parameter" and len(graph.nodes[one].shape) > 1:
                    uses.setdefault(_source(graph, one), []).append(node.index)
    return uses


def _source(graph: Graph, index: int) -> int:
    """The parameter behind a view of it, or the first of those behind something made of parameters and constants."""
    while graph.nodes[index].inputs:
        inputs = graph.nodes[index].inputs
        index = next((one for one in inputs if graph.nodes[one].kind == "parameter"), inputs[0])
    return index


def _feeds(graph: Graph, uses: list[int]) -> bool:
    return graph.depends(uses[1], uses[0]) or graph.depends(uses[-1], uses[0])


def _owner(graph: Graph, uses: list[int]) -> tuple[str, int]:
    """The outermost module that ran again with the weight, or the module that used it several times in one run."""
    first, last = (_path_up(graph, graph.nodes[use].call) for use in (uses[0], uses[-1]))
    for one, other in zip(first, last, strict=False):
        if one != other and graph.calls[one].path == graph.calls[other].path:
            runs = {graph.calls[call].number for use in uses for call in _path_up(graph, graph.nodes[use].call)
                    if graph.calls[call].path == graph.calls[one].path}  # fmt: skip
            return graph.calls[one].path, len(runs)
    return graph.calls[graph.nodes[uses[0]].call].path, len(uses)


def _path_up(graph: Graph, call: int | None) -> list[int]:
    """The calls around a call, the outermost first."""
    path: list[int] = []
    while call is not None:
        path.insert(0, call)
        call = graph.calls[call].parent
    return path
