"""Which parameters went into each value of a graph that is made of parameters."""

from __future__ import annotations

from collections.abc import Callable

from kilolayer.structure.graph import Graph

Names = Callable[[int], tuple[str, ...]]


def name_parameters(graph: Graph) -> Names:
    """A function from a node to the names of its parameters, every node looked at once."""
    found: list[tuple[str, ...]] = []
    for node in graph.nodes:
        if node.kind != "parameter":
            found.append(())
        elif not node.inputs:
            found.append((node.name,) if node.name is not None else ())
        else:
            found.append(tuple(dict.fromkeys(name for source in node.inputs for name in found[source])))
    return found.__getitem__
