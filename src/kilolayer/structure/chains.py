"""Which residual sums follow each other on one stream: encoder, decoder and every stage are chains of their own."""

from __future__ import annotations

from kilolayer.structure.signal import Signal
from kilolayer.structure.sums import ResidualSum


class Family:
    """Residual sums and how they follow each other.

    Attributes:
        sums: in order of execution.
        before: for the node of a sum, that of the one before it on its stream, inside the same branches or not.
        chains: lists of sums, each the next one on the same stream inside the same branches.
    """

    def __init__(self, sums: list[ResidualSum], before: dict[int, int], long_skips: frozenset[int]):
        self.sums = sums
        self._at = {one.node: one for one in sums}
        self._long = long_skips
        self._around = self._find_around()
        self.before = before
        self.chains = self._build_chains()
        self._number_at = {one.node: number for number, chain in enumerate(self.chains) for one in chain}

    def is_long(self, node: int) -> bool:
        """Whether the sum joins the stream with an older point of it, so that its branch is the stream itself."""
        return node in self._long

    def around(self, node: int) -> list[ResidualSum]:
        """The sums inside whose branches this sum is."""
        return self._around[node]

    def chain_of(self, node: int) -> list[ResidualSum]:
        """The chain a sum belongs to."""
        return self.chains[self._number_at[node]]

    def chain_number(self, node: int) -> int:
        """The place of a sum's chain among all chains."""
        return self._number_at[node]

    def _find_around(self) -> dict[int, list[ResidualSum]]:
        around: dict[int, list[ResidualSum]] = {one.node: [] for one in self.sums}
        for outer in self.sums:
            for node in () if self.is_long(outer.node) else outer.region:
                if node in around and self._at[node].source in outer.region:
                    around[node].append(outer)
        return around

    def _same_level(self, node: int, earlier: int) -> bool:
        return [one.node for one in self._around[node]] == [one.node for one in self._around[earlier]]

    def _build_chains(self) -> list[list[ResidualSum]]:
        chains: list[list[ResidualSum]] = []
        ending_in: dict[int, list[ResidualSum]] = {}
        for one in self.sums:
            before = self.before.get(one.node)
            follows = before is not None and self._same_level(one.node, before)
            chain = ending_in.pop(before, None) if before is not None and follows else None
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
