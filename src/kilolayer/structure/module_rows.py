"""Rows of the site table for modules that are no residual branch's: matrices, norms, activations, the input."""

from __future__ import annotations

import bisect
from collections.abc import Container, Sequence
from typing import Any, NamedTuple

from kilolayer.structure.contents import name_activations
from kilolayer.structure.finder import SiteFinder
from kilolayer.structure.signal import Signal


class Row(NamedTuple):
    """A row in the making: the node that is read, the site's name and kind, and its other fields."""

    node: int
    name: str
    kind: str
    fields: dict[str, Any]


def module_rows(finder: SiteFinder, inside: Container[int], owners: frozenset[str]) -> list[Row]:
    """Outputs of the modules outside the branches that hold parameters or a norm, and the input of the first.

    Args:
        finder: of the model's graph.
        inside: the nodes of the branches.
        owners: the paths of the modules that hold parameters themselves.
    """
    rows: list[Row] = []
    graph, signal = finder.graph, finder.signal
    for number, call in enumerate(graph.calls):
        node = None if call.output is None else graph.whole(graph.node_of_value[call.output])
        if number == 0 or node is None or node in inside or graph.nodes[node].kind != "data":
            continue
        norm = signal.norm_at.get(node)
        name = f"{finder.name(number)}:out"
        if norm is not None and graph.nodes[norm.output].call == number:
            rows.append(Row(node, name, "norm", {"norm_kind": norm.kind}))
        elif _ends_in_own_matrix(signal, number, node):
            rows.append(Row(node, name, "linear", {}))
        elif call.path in owners and graph.nodes[node].call == number:
            rows.append(Row(node, name, "output", {}))
    return _input_rows(finder) + rows


def activation_rows(finder: SiteFinder) -> list[Row]:
    """Outputs of the modules that do nothing but apply an activation function, inside branches and outside."""
    graph = finder.graph
    nodes_of: dict[int, list[int]] = {}
    for one in graph.nodes:
        nodes_of.setdefault(one.call, []).append(one.index)
    with_children = {call.parent for call in graph.calls}
    rows = []
    for number, call in enumerate(graph.calls):
        nodes = nodes_of.get(number, [])
        if number in with_children or call.output is None or not nodes:
            continue
        node = graph.whole(graph.node_of_value[call.output])
        is_pure = not any(graph.is_learned_matrix(index) or index in finder.signal.norm_of_member for index in nodes)
        names = name_activations(finder.signal, nodes) if is_pure and graph.nodes[node].kind == "data" else ()
        if len(names) == 1 and graph.nodes[node].call == number:
            rows.append(Row(node, f"{finder.name(number)}:out", "activation", {"activation": names[0]}))
    return rows


def as_blocks(signal: Signal, rows: Sequence[Row]) -> list[Row]:
    """Without skips, every matrix but the first and the last is a block; its norm, if one follows, is its stream."""
    matrices = [row.node for row in rows if row.kind == "linear"]
    blocks = {node: index for index, node in enumerate(matrices[1:-1])}
    marked = []
    current: int | None = None
    for position, row in enumerate(rows):
        if row.kind == "linear":
            current = blocks.get(row.node)
        ends = position + 1 == len(rows) or rows[position + 1].kind != "norm"
        if current is not None and row.kind in ("linear", "norm"):
            described = _block_fields(signal, row, ends=ends)
            row = row._replace(fields={**row.fields, **described, "block_index": current, "chain": 0})
        marked.append(row)
    return marked


def block_before(rows: Sequence[Row], node: int) -> dict[str, Any]:
    """What the row in front of a node says of its block, without residual branches; nothing behind a branch."""
    ordered = sorted((row.node, position) for position, row in enumerate(rows))
    place = bisect.bisect_left(ordered, (node, -1))
    fields = rows[ordered[place - 1][1]].fields if place else {}
    kept = ("block_index", "chain", "norm_placement", "norm_kind")
    return {} if "skip_scale" in fields else {key: fields[key] for key in kept if key in fields}


def _input_rows(finder: SiteFinder) -> list[Row]:
    """The model's float input, read at the innermost module that is given it first."""
    found: int | None = None
    for number, call in enumerate(finder.graph.calls[1:], start=1):
        node = None if call.input is None else finder.graph.nodes[finder.graph.node_of_value[call.input]]
        if node is not None and node.op == "input" and node.is_float and (found is None or call.parent == found):
            found = number
    return [] if found is None else [Row(-1, f"{finder.name(found)}:in", "input", {})]


def _ends_in_own_matrix(signal: Signal, call: int, node: int) -> bool:
    matrix = next(
        (one for one, _ in signal.back(node, through_shifts=True) if signal.graph.is_learned_matrix(one)), None
    )
    embeds = signal.nodes[node].op == "embedding" and signal.nodes[node].call == call
    return embeds or (matrix is not None and signal.nodes[matrix].call == call)


def _block_fields(signal: Signal, row: Row, *, ends: bool) -> dict[str, Any]:
    norm = signal.norm_at.get(row.node)
    if norm is None:
        norm = next((signal.norm_of_member.get(reader) for reader in signal.ahead(row.node)), None)
    return {
        "stream": row.kind == "norm" or ends,
        "norm_placement": "none" if norm is None else "post",
        "norm_kind": None if norm is None else norm.kind,
        "activation": _activation_after(signal, row.node if norm is None else norm.output),
    }


def _activation_after(signal: Signal, node: int) -> str | None:
    names = name_activations(signal, signal.ahead(node))
    return names[0] if names else None
