"""Sums that look like residual ones by what goes in, and are not by what comes of them."""

from __future__ import annotations

from kilolayer.structure.chains import Family, link
from kilolayer.structure.signal import Signal
from kilolayer.structure.sums import ResidualSum

_GATES = ("sigmoid", "tanh")


def keep_residuals(signal: Signal, sums: list[ResidualSum]) -> Family:
    """The sums that are residual ones, linked into chains.

    Left out are sums inside a recurrent cell, terms that a branch adds to itself under a trained factor (the
    D-term of a state space), and skips that leave one branch for another, past the stream: attention scores or
    values handed to the next layer.
    """
    family = link(signal, [one for one in sums if not _is_gate(signal, one)])
    kept = []
    for one in family.sums:
        start = family.start(one.node)
        if not _leaves_a_branch(family, start) and not _is_own_term(family, one):
            kept.append(one)
    return link(signal, kept) if len(kept) < len(family.sums) else family


def _is_gate(signal: Signal, one: ResidualSum) -> bool:
    readers = signal.ahead(one.node)
    if one.kind == "projection" and readers and all(signal.nodes[reader].op in _GATES for reader in readers):
        return True
    if len(readers) != 1 or signal.nodes[readers[0]].op != "mul":
        return False
    operands = {signal.graph.whole(one.skip), signal.graph.whole(one.branch)}
    return any(
        signal.nodes[index].op == "sum" and operands & {signal.graph.whole(term) for term in signal.nodes[index].inputs}
        for index in signal.ahead(readers[0])
    )


def _leaves_a_branch(family: Family, one: ResidualSum) -> bool:
    return any(other.node != one.node and one.node not in other.region for other in family.passing(one.source))


def _is_own_term(family: Family, one: ResidualSum) -> bool:
    inside = any(one.source != outer.source for outer in family.around(one.node))
    return inside and bool(one.skip_factor.parameters) and len(family.chain_of(one.node)) == 1
