"""Where hooks on modules can see a node of the graph."""

from __future__ import annotations

from kilolayer.structure.graph import Graph
from kilolayer.structure.signal import Signal


class SiteFinder:
    """Finds the module whose input or output is a certain node."""

    def __init__(self, signal: Signal):
        self.signal = signal
        self.graph: Graph = signal.graph
        self._runs: dict[str, int] = {}
        for call in self.graph.calls[1:]:
            self._runs[call.path] = self._runs.get(call.path, 0) + 1
        self._makes: dict[int, list[int]] = {}
        self._reads: dict[int, list[int]] = {}
        for number, call in enumerate(self.graph.calls):
            for value, table in ((call.output, self._makes), (call.input, self._reads)):
                if value is not None:
                    table.setdefault(self._node(value), []).append(number)

    def name(self, call: int) -> str:
        """``path``, or ``path#call`` where the module runs more than once."""
        entry = self.graph.calls[call]
        return entry.path if self._runs.get(entry.path, 1) == 1 else f"{entry.path}#{entry.number}"

    def maker(self, index: int, *, outside: int | None = None) -> int | None:
        """The call that returns a node: the innermost, or the outermost that does not hold the call ``outside``."""
        makers = self._makes.get(self.graph.whole(index), [])
        if outside is None:
            return makers[-1] if makers else None
        around = self.calls_around(outside)
        return next((call for call in makers if call not in around), None)

    def sum_maker(self, index: int) -> int | None:
        """The innermost call that does a sum and returns it."""
        makers = self._makes.get(self.graph.whole(index), [])
        around = self.calls_around(self.graph.nodes[index].call)
        return next((call for call in around if call in makers), None)

    def reader(self, index: int) -> int | None:
        """The first call that is given a node."""
        readers = self._reads.get(self.graph.whole(index), [])
        return readers[0] if readers else None

    def calls_around(self, call: int | None) -> list[int]:
        """A call and those it runs in, the innermost first."""
        found: list[int] = []
        while call is not None:
            found.append(call)
            call = self.graph.calls[call].parent
        return found

    def _node(self, value: int) -> int:
        return self.graph.whole(self.graph.node_of_value[value])
