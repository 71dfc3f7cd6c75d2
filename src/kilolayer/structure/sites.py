"""Rows of the site table: where hooks on modules can read what, and what the model is there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from torch import nn

from kilolayer.recording import Site
from kilolayer.structure.contents import name_activations
from kilolayer.structure.graph import Graph
from kilolayer.structure.norms import Norm
from kilolayer.structure.placement import Placement
from kilolayer.structure.signal import Signal
from kilolayer.structure.structure import Branch
from kilolayer.structure.sums import ResidualSum


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


def describe_sites(
    finder: SiteFinder, sums: Sequence[ResidualSum], branches: Sequence[Branch], placements: dict[int, Placement]
) -> tuple[list[Site], list[str]]:
    """The tensor sites of a model in order of execution, and the names of the sums that no module shows.

    Per branch there are the branch's output, the sum, and the post-norm's output if there is one; outside the
    branches every module with parameters of its own has one.
    """
    found: list[tuple[int, str, str, dict[str, Any]]] = []
    unobserved = []
    for one, branch in zip(sums, branches, strict=True):
        rows, is_seen = _branch_rows(finder, one, branch, placements[one.node])
        found += rows
        if not is_seen:
            unobserved.append(f"{finder.name(finder.graph.nodes[one.node].call)}:sum")
    inside = {index for one in sums for index in one.region if index != one.source}
    taken = {name for _, name, _, _ in found}
    found += [row for row in _module_rows(finder, inside, has_branches=bool(sums)) if row[1] not in taken]
    found = sorted({row[1]: row for row in reversed(found)}.values(), key=lambda row: row[0])
    sites = [
        Site(name, re.split("[#:]", name)[0], kind, order, **fields)
        for order, (_, name, kind, fields) in enumerate(found)
    ]
    return sites, unobserved


def _branch_rows(
    finder: SiteFinder, one: ResidualSum, branch: Branch, placement: Placement
) -> tuple[list[tuple[int, str, str, dict[str, Any]]], bool]:
    fields: dict[str, Any] = {
        "block_index": branch.index,
        "branch_index": branch.index,
        "chain": branch.chain,
        "norm_placement": branch.norm_placement,
        "norm_kind": branch.norm_kind,
        "activation": branch.activations[0] if branch.activations else None,
        "skip_scale": branch.skip_scale,
        "branch_scale": branch.branch_scale,
    }
    rows = []
    maker = branch_maker(finder, one)
    if maker is not None:
        rows.append((one.branch, f"{finder.name(maker)}:out", "branch", fields))
    post = placement.norms.get("post")
    name = _sum_site(finder, one)
    if name is not None:
        rows.append((one.node, name, "sum", {**fields, "stream": post is None}))
    normed = None if post is None else finder.maker(post.output)
    if post is not None and normed is not None:
        rows.append((post.output, f"{finder.name(normed)}:out", "norm", {**fields, "stream": True}))
    return rows, name is not None


def branch_maker(finder: SiteFinder, one: ResidualSum) -> int | None:
    """The call that returns the branch's output, or what is only multiplied before the sum."""
    call = finder.graph.nodes[one.node].call
    behind = (index for index, _ in finder.signal.back(one.branch, through_shifts=True) if index in one.region)
    return next((maker for index in behind if (maker := finder.maker(index, outside=call)) is not None), None)


def _sum_site(finder: SiteFinder, one: ResidualSum) -> str | None:
    maker = finder.sum_maker(one.node)
    if maker is not None:
        return f"{finder.name(maker)}:sum"
    reader = finder.reader(one.node)
    return None if reader is None else f"{finder.name(reader)}:in"


def _module_rows(
    finder: SiteFinder, inside: set[int], *, has_branches: bool
) -> list[tuple[int, str, str, dict[str, Any]]]:
    """Outputs of the modules outside the branches that hold a matrix or a norm, and the input of the first."""
    rows: list[tuple[int, str, str, dict[str, Any]]] = []
    graph, signal = finder.graph, finder.signal
    for number, call in enumerate(graph.calls):
        node = None if call.output is None else graph.whole(graph.node_of_value[call.output])
        if number == 0 or node is None or node in inside or graph.nodes[node].kind != "data":
            continue
        norm = signal.norm_at.get(node)
        is_norm = norm is not None and graph.nodes[norm.output].call == number
        is_linear = _ends_in_own_matrix(signal, number, node)
        if not (is_norm or is_linear):
            continue
        kind = norm.kind if norm is not None and is_norm else None
        rows.append((node, f"{finder.name(number)}:out", "norm" if is_norm else "linear", {"norm_kind": kind}))
    return _input_rows(finder) + (rows if has_branches else _as_blocks(signal, rows))


def _input_rows(finder: SiteFinder) -> list[tuple[int, str, str, dict[str, Any]]]:
    """The model's float input, read at the innermost module that is given it first."""
    found: int | None = None
    for number, call in enumerate(finder.graph.calls[1:], start=1):
        node = None if call.input is None else finder.graph.nodes[finder.graph.node_of_value[call.input]]
        if node is not None and node.op == "input" and node.is_float and (found is None or call.parent == found):
            found = number
    return [] if found is None else [(-1, f"{finder.name(found)}:in", "input", {})]


def _ends_in_own_matrix(signal: Signal, call: int, node: int) -> bool:
    matrix = next(
        (one for one, _ in signal.back(node, through_shifts=True) if signal.graph.is_learned_matrix(one)), None
    )
    embeds = signal.nodes[node].op == "embedding" and signal.nodes[node].call == call
    return embeds or (matrix is not None and signal.nodes[matrix].call == call)


def _as_blocks(
    signal: Signal, rows: list[tuple[int, str, str, dict[str, Any]]]
) -> list[tuple[int, str, str, dict[str, Any]]]:
    """Without skips, every matrix but the first and the last is a block; its norm, if one follows, is its stream."""
    matrices = [row[0] for row in rows if row[2] == "linear"]
    blocks = {node: index for index, node in enumerate(matrices[1:-1])}
    marked = []
    current: int | None = None
    for position, (node, name, kind, fields) in enumerate(rows):
        if kind == "linear":
            current = blocks.get(node)
        ends = position + 1 == len(rows) or rows[position + 1][2] != "norm"
        if current is not None and kind in ("linear", "norm"):
            fields = {**fields, **_block_fields(signal, node, kind, ends), "block_index": current, "chain": 0}
        marked.append((node, name, kind, fields))
    return marked


def _block_fields(signal: Signal, node: int, kind: str, ends: bool) -> dict[str, Any]:
    norm: Norm | None = signal.norm_at.get(node)
    if norm is None:
        norm = next((signal.norm_of_member.get(reader) for reader in signal.ahead(node)), None)
    return {
        "stream": kind == "norm" or ends,
        "norm_placement": "none" if norm is None else "post",
        "norm_kind": None if norm is None else norm.kind,
        "activation": _activation_after(signal, node if norm is None else norm.output),
    }


def _activation_after(signal: Signal, node: int) -> str | None:
    names = name_activations(signal, signal.ahead(node))
    return names[0] if names else None


def parameter_sites(
    finder: SiteFinder, model: nn.Module, sites: Sequence[Site], parts: Sequence[frozenset[int]]
) -> list[Site]:
    """One row per parameter, behind the tensor sites.

    Args:
        finder: of the model's graph.
        model: gives the parameters their names.
        sites: the tensor sites.
        parts: the nodes that belong to each branch, its norms included.
    """
    block_of_node: dict[int, int] = {}
    # Nested branches are smaller, and what they hold is theirs.
    for index in sorted(range(len(parts)), key=lambda index: -len(parts[index])):
        block_of_node.update(dict.fromkeys(parts[index], index))
    block_of_path = {site.path: site.block_index for site in sites if site.block_index is not None}
    used_in = _first_uses(finder.graph)
    rows = []
    for order, (name, parameter) in enumerate(model.named_parameters(), start=len(sites)):
        owner = name.rpartition(".")[0]
        block = block_of_node.get(used_in.get(name, -1))
        block = block_of_path.get(owner) if block is None and not parts else block
        kind = "weight" if parameter.dim() >= 2 else "parameter"
        rows.append(Site(name, owner, kind, order, block_index=block, shape=tuple(parameter.shape)))
    return rows


def _first_uses(graph: Graph) -> dict[str, int]:
    """For each parameter the first node of the signal that is computed with it."""
    found: dict[str, int] = {}
    for node in graph.nodes:
        if node.kind == "data":
            for source in node.inputs:
                if graph.nodes[source].kind == "parameter":
                    for name in graph.parameter_names(source):
                        found.setdefault(name, node.index)
    return found
