"""Which residual sums follow each other on one stream: encoder, decoder and every stage are chains of their own."""

from __future__ import annotations

from kilolayer.structure.signal import Signal
from kilolayer.structure.sums import ResidualSum


class Family:
    """Residual sums and how they follow each other.

    Attributes:
        sums: in order of execution.
        chains: lists of sums, each the next one on the same stream.
    """

    def __init__(self, sums: list[ResidualSum], before: dict[int, int], long_skips: frozenset[int]):
        self.sums = sums
        self._at = {one.node: one for one in sums}
        self._long = long_skips
        self._passing = self._find_passing()
        self._around = {one.node: self._find_around(one) for one in sums}
        self._before = {node: earlier for node, earlier in before.items() if self._same_level(node, earlier)}
        self.chains = self._build_chains()
        self._chain_at = {one.node: chain for chain in self.chains for one in chain}

    def is_long(self, node: int) -> bool:
        """Whether the sum joins the stream with an older point of it, so that its branch is the stream itself."""
        return node in self._long

    def around(self, node: int) -> list[ResidualSum]:
        """The sums inside whose branches this sum is."""
        return self._around[node]

    def passing(self, node: int) -> list[ResidualSum]:
        """The sums inside whose branches a source or a sum is, long skips left out."""
        return self._passing[node]

    def chain_of(self, node: int) -> list[ResidualSum]:
        """The chain a sum belongs to."""
        return self._chain_at[node]

    def start(self, node: int) -> ResidualSum:
        """The first sum of the stream a sum is on."""
        while node in self._before:
            node = self._before[node]
        return self._at[node]

    def _find_passing(self) -> dict[int, list[ResidualSum]]:
        passing: dict[int, list[ResidualSum]] = {node: [] for one in self.sums for node in (one.node, one.source)}
        for one in self.sums:
            if one.node not in self._long:
                for node in one.region:
                    if node in passing and node != one.source:
                        passing[node].append(one)
        return passing

    def _find_around(self, one: ResidualSum) -> list[ResidualSum]:
        return [outer for outer in self._passing[one.node] if one.source in outer.region]

    def _same_level(self, node: int, earlier: int) -> bool:
        return [one.node for one in self._around[node]] == [one.node for one in self._around[earlier]]

    def _build_chains(self) -> list[list[ResidualSum]]:
        chains: list[list[ResidualSum]] = []
        ending_in: dict[int, list[ResidualSum]] = {}
        for one in self.sums:
            chain = ending_in.pop(self._before.get(one.node, -1), None)
            if chain is None:
                chain = []
                chains.append(chain)
            chain.append(one)
            ending_in[one.node] = chain
        return chains


def link(signal: Signal, sums: list[ResidualSum]) -> Family:
    """Find for every sum the one before it on its stream."""
    nodes = {one.node for one in sums}
    before: dict[int, int] = {}
    long_skips = set()
    for one in sums:
        ends_in = next((index for index, _ in signal.back(one.branch, through_shifts=True) if index in nodes), None)
        if ends_in is not None:
            long_skips.add(one.node)
            before[one.node] = ends_in
            continue
        earlier = next((index for index in signal.stream_back(one.skip) if index in nodes), None)
        if earlier is not None:
            before[one.node] = earlier
    return Family(sums, before, frozenset(long_skips))
