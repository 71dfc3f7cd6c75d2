"""Where norms stand around a residual sum: before the branch, before its last matrix, at its end, behind the sum."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kilolayer.structure import ops
from kilolayer.structure.chains import Family
from kilolayer.structure.norms import Norm
from kilolayer.structure.signal import Signal
from kilolayer.structure.sums import ResidualSum, has_branch

SLOTS = ("pre", "inner", "end", "post")

GUESSED = 0.5
"""Confidence of a placement that rests on a rule of thumb, as that of a lone sum with a norm behind it."""


@dataclass(frozen=True)
class Placement:
    """The norm in each filled slot, the factor on the whole sum, and how sure the reading is."""

    norms: dict[str, Norm]
    sum_factor: float
    end: int
    confidence: float = 1.0

    @property
    def name(self) -> str:
        """The filled slots joined by +, or none."""
        return "+".join(slot for slot in SLOTS if slot in self.norms) or "none"

    @property
    def norm_kind(self) -> str | None:
        """The kind of the norm in the first filled slot."""
        return next((self.norms[slot].kind for slot in SLOTS if slot in self.norms), None)


def place_norms(signal: Signal, family: Family) -> dict[int, Placement]:
    """The placement of every sum.

    A norm behind the last sum of a chain may be its post-norm or the norm that ends the chain: it is a
    post-norm if the sum before has one. A lone sum goes by the other chains, and without any by whether its
    branch holds a norm already.
    """
    inside = {one.node: _place_inside(signal, one) for one in family.sums}
    for one in reversed(family.sums):
        # A sum of three terms is two sums, one right behind the other: what stands behind the second is behind both.
        if family.is_long(one.node) and signal.ahead(one.branch) == [one.node] and one.branch in inside:
            inside[one.branch] = replace(inside[one.branch], end=inside[one.node].end)
    behind = {one.node: _norm_behind(signal, inside[one.node].end) for one in family.sums}
    last = {chain[-1].node for chain in family.chains}
    settled = [one.node for one in family.sums if one.node not in last]
    has_post = {node: behind[node] is not None for node in settled}
    for chain in family.chains:
        node = chain[-1].node
        confidence = 1.0
        if len(chain) > 1:
            has_post[node] = has_post.get(chain[-2].node, False)
        elif settled:
            has_post[node] = 2 * sum(has_post[one] for one in settled) > len(settled)
        else:
            has_post[node] = not any(index in signal.norm_at for index in chain[-1].region - {chain[-1].source})
            confidence = GUESSED
        if behind[node] is not None and len(chain) == 1:
            inside[node] = replace(inside[node], confidence=min(confidence, 0.8))
    return {node: _with_post(found, behind[node], has_post.get(node, False)) for node, found in inside.items()}


def _with_post(found: Placement, norm: Norm | None, has_post: bool) -> Placement:
    return replace(found, norms={**found.norms, "post": norm}) if has_post and norm is not None else found


def _place_inside(signal: Signal, one: ResidualSum) -> Placement:
    found = {
        "pre": _pre(signal, one),
        "inner": _inner(signal, one),
        "end": _end(signal, one),
    }
    factor, end = _factor_of_sum(signal, one.node)
    return Placement({slot: norm for slot, norm in found.items() if norm is not None}, factor, end)


def _pre(signal: Signal, one: ResidualSum) -> Norm | None:
    """The norm in front of the branch; where the skip is projected, that in front of both."""
    return _norm_before_all(signal, one) or (_norm_before_projection(signal, one) if one.kind == "projection" else None)


def _norm_before_all(signal: Signal, one: ResidualSum) -> Norm | None:
    """The norm that everything the branch does to its source goes through."""
    norms = []
    seen, open_nodes = {one.source}, [one.source]
    while open_nodes:
        for user in signal.graph.users[open_nodes.pop()]:
            if user not in one.region or user in seen:
                continue
            seen.add(user)
            norm = signal.norm_of_member.get(user)
            if norm is not None:
                norms.append(norm)
            elif has_branch(signal, frozenset({user})) or signal.nodes[user].op in ops.POOLS:
                return None
            else:
                open_nodes.append(user)
    return norms[0] if norms else None


def _norm_before_projection(signal: Signal, one: ResidualSum) -> Norm | None:
    """Where a block of norm, activation, matrix projects its skip, skip and branch both read the normed stream."""
    index = one.source
    while index not in signal.norm_at:
        node = signal.nodes[index]
        if node.op not in ops.ACTIVATIONS and node.op != "view":
            return None
        index = node.inputs[0]
    return signal.norm_at[index]


def _inner(signal: Signal, one: ResidualSum) -> Norm | None:
    """The norm right in front of the branch's last matrix, if it is not in front of the whole branch."""
    norm = None
    for matrix in last_matrices(signal, one):
        source = next(iter(signal.graph.data_inputs(matrix)))
        *_, (index, factor) = signal.back(source)
        norm = signal.norm_at.get(index)
        if norm is None or factor.parameters or norm.output not in one.region:
            return None
        if not has_branch(signal, signal.graph.between(one.source, norm.input) - {one.source}):
            return None
    return norm


def last_matrices(signal: Signal, one: ResidualSum) -> list[int]:
    found, seen, open_nodes = [], {one.branch}, [one.branch]
    while open_nodes:
        index = open_nodes.pop()
        if signal.graph.is_learned_matrix(index):
            found.append(index)
            continue
        for source in signal.graph.data_inputs(index):
            if source in one.region and source not in seen and source != one.source:
                seen.add(source)
                open_nodes.append(source)
    return found


def _end(signal: Signal, one: ResidualSum) -> Norm | None:
    *_, (index, _) = signal.back(one.branch, through_shifts=True)
    return signal.norm_at.get(index) if index in one.region and index != one.source else None


def _factor_of_sum(signal: Signal, index: int) -> tuple[float, int]:
    """A constant that is all that reads the sum is a factor of both terms; the node that stands for the sum then."""
    readers = signal.ahead(index)
    if len(readers) == 1 and index not in signal.graph.outputs:
        node = signal.nodes[readers[0]]
        if node.op == "scale" and node.parameter is None and node.index not in signal.norm_of_member:
            return node.constant, node.index
    return 1.0, index


def _norm_behind(signal: Signal, index: int) -> Norm | None:
    """The one norm that is all that reads a node."""
    readers = signal.ahead(index)
    norms = signal.norms_reading(readers) if readers else None
    return norms[0] if norms is not None and len(norms) == 1 else None


def final_norm(
    signal: Signal, family: Family, placements: dict[int, Placement], chain: list[ResidualSum]
) -> Norm | None:
    """The norm that ends a chain: behind its last sum, and behind that one's post-norm if it has one."""
    last = placements[chain[-1].node]
    start = last.norms["post"].output if "post" in last.norms else last.end
    open_nodes, seen = [start], {start}
    while open_nodes:
        for reader in signal.ahead(open_nodes.pop()):
            norm = signal.norm_of_member.get(reader)
            if norm is not None:
                return None if _starts_a_branch(signal, family, norm) else norm
            node = signal.nodes[reader]
            passes = node.op in ops.POOLS or node.op in ("cat", "merge") or node.op == "scale"
            if passes and reader not in seen:
                seen.add(reader)
                open_nodes.append(reader)
    return None


def _starts_a_branch(signal: Signal, family: Family, norm: Norm) -> bool:
    return any(norm.output in one.region or norm.output in signal.stream_back(one.source) for one in family.sums)
