"""One pass as the tables read it: its graph, and the statistics that belong to a node."""

from __future__ import annotations

import math
from typing import Any

from kilolayer.check.probe import Pass
from kilolayer.check.values import Stats
from kilolayer.structure.graph import Graph, Node
from kilolayer.structure.normal_form import build_graph
from kilolayer.structure.norms import find_norms
from kilolayer.structure.signal import Signal

PASSED = {"view", "scale", "shift", "merge"}
"""Operations a signal goes through without becoming another one."""


class PassReader:
    """A pass, its operations as a graph, and what was measured at each.

    Args:
        found: the pass.
    """

    def __init__(self, found: Pass):
        self.found = found
        self.graph: Graph = build_graph(found.record)
        self.signal = Signal(self.graph, find_norms(self.graph))
        self.nodes = self.graph.nodes
        self.value_of_node = {node: value for value, node in enumerate(self.graph.node_of_value)}

    def row(self, value: int) -> dict[str, Any] | None:
        """Shape and sizes of a value, ready for JSON; ``None`` where it was not measured."""
        stats = self.found.stats.get(value)
        if stats is None:
            return None
        return {
            "shape": list(self.found.record.values[value].shape),
            "rms": number(stats.rms),
            "max_abs": number(stats.max_abs),
            "sample_std": number(stats.sample_std),
            "grad_rms": number(self.found.grads.get(value)),
        }

    def path(self, node: Node) -> str:
        """Of the module that a node belongs to."""
        return self.graph.calls[node.call].path

    def stats(self, index: int | None) -> Stats | None:
        """What was measured at a node."""
        value = None if index is None else self.value_of_node.get(index)
        return None if value is None else self.found.stats.get(value)

    def grad(self, index: int) -> float | None:
        """RMS of the gradient that comes back to a node."""
        value = self.value_of_node.get(index)
        return None if value is None else self.found.grads.get(value)


def number(value: float | None) -> float | None:
    """A finite number, or ``None``."""
    return value if value is not None and math.isfinite(value) else None


def of(stats: Stats | None, name: str) -> float | None:
    """A finite statistic, or ``None``."""
    return None if stats is None else number(getattr(stats, name))
