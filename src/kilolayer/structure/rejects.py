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
    family = link(signal, _without_crossings(signal, family))
    own_terms = {one.node for one in family.sums if _is_own_term(family, one)}
    return link(signal, [one for one in family.sums if one.node not in own_terms]) if own_terms else family


def _is_gate(signal: Signal, one: ResidualSum) -> bool:
    readers = signal.ahead(one.node)
    feeds_gates = bool(readers) and all(signal.nodes[reader].op in _GATES for reader in readers)
    if feeds_gates and (one.kind == "projection" or _is_part(signal, one)):
        return True
    if len(readers) != 1 or signal.nodes[readers[0]].op != "mul":
        return False
    operands = {signal.graph.whole(one.skip), signal.graph.whole(one.branch)}
    return any(
        signal.nodes[index].op == "add" and operands & {signal.graph.whole(term) for term in signal.nodes[index].inputs}
        for index in signal.ahead(readers[0])
    )


def _is_part(signal: Signal, one: ResidualSum) -> bool:
    """Whether the skip carries a slice of its source only."""
    walk = (index for index, _ in signal.back(one.skip) if index > one.source)
    return any(signal.nodes[index].op == "view" and not signal.nodes[index].is_whole for index in walk)


def _without_crossings(signal: Signal, family: Family) -> list[ResidualSum]:
    """The sums that do not leave a branch for another one, and do not follow one that does.

    The older source decides: a stream was there before what starts inside one of its branches. A sum that goes
    on with a stream may start inside a branch, as each of two reversible streams does inside those of the other.
    """
    kept: dict[int, ResidualSum] = {}
    for one in sorted(family.sums, key=lambda one: (one.source, one.node)):
        before = family.before.get(one.node)
        if family.is_long(one.node) or (before in kept if before is not None else not _crosses(signal, one, kept)):
            kept[one.node] = one
    return [one for one in family.sums if one.node in kept]


def _crosses(signal: Signal, one: ResidualSum, others: dict[int, ResidualSum]) -> bool:
    views = {one.source}
    index = one.source
    while signal.nodes[index].op == "view":
        index = signal.nodes[index].inputs[0]
        views.add(index)
    return any(
        one.source in other.region and other.source not in views and one.node not in other.region
        for other in others.values()
    )


def _is_own_term(family: Family, one: ResidualSum) -> bool:
    inside = any(one.source != outer.source for outer in family.around(one.node))
    return inside and bool(one.skip_factor.parameters) and len(family.chain_of(one.node)) == 1
