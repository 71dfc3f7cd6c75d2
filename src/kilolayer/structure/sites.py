"""Rows of the site table: where hooks on modules can read what, and what the model is there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from torch import nn

from kilolayer.recording import Site
from kilolayer.structure.finder import SiteFinder
from kilolayer.structure.graph import Graph
from kilolayer.structure.module_rows import Row, activation_rows, as_blocks, block_before, module_rows
from kilolayer.structure.names import clean_name
from kilolayer.structure.placement import Placement
from kilolayer.structure.structure import Branch
from kilolayer.structure.sums import ResidualSum


def describe_sites(
    finder: SiteFinder,
    sums: Sequence[ResidualSum],
    branches: Sequence[Branch],
    placements: dict[int, Placement],
    owners: frozenset[str],
) -> tuple[list[Site], list[str]]:
    """The tensor sites of a model in order of execution, and the names of the sums that no module shows.

    Per branch there are its norms' outputs, its own, the sum, and what its activation modules put out; outside the
    branches every module with parameters of its own has one, and every activation module.

    Args:
        finder: of the model's graph.
        sums, branches, placements: the residual sums, each as it is described.
        owners: the paths of the modules that hold parameters themselves.
    """
    found: list[Row] = []
    unobserved = []
    for one, branch in zip(sums, branches, strict=True):
        rows, is_seen = _branch_rows(finder, one, branch, placements[one.node])
        found += rows
        if not is_seen:
            unobserved.append(f"{finder.name(finder.graph.nodes[one.node].call)}:sum")
    inside = {index: one.node for one in _outermost_first(sums) for index in one.region if index != one.source}
    outside = module_rows(finder, inside, owners)
    found += outside if sums else as_blocks(finder.signal, outside)
    taken = {row.node for row in found}
    fields_of = {one.node: _branch_fields(branch) for one, branch in zip(sums, branches, strict=True)}
    for row in activation_rows(finder):
        if row.node not in taken:
            fields = fields_of.get(inside.get(row.node, -1)) or block_before(found, row.node)
            found.append(row._replace(fields=fields | row.fields))
    found = sorted({row.name: row for row in reversed(found)}.values(), key=lambda row: row.node)
    sites = [
        Site(row.name, re.split("[#:]", row.name)[0], row.kind, order, **row.fields) for order, row in enumerate(found)
    ]
    return sites, unobserved


def _outermost_first(sums: Sequence[ResidualSum]) -> list[ResidualSum]:
    """Nested branches are smaller, and what they hold is theirs: they come last."""
    return sorted(sums, key=lambda one: -len(one.region))


def _branch_fields(branch: Branch) -> dict[str, Any]:
    return {
        "block_index": branch.index,
        "branch_index": branch.index,
        "chain": branch.chain,
        "norm_placement": branch.norm_placement,
        "norm_kind": branch.norm_kind,
        "activation": branch.activations[0] if branch.activations else None,
        "skip_scale": branch.skip_scale,
        "branch_scale": branch.branch_scale,
    }


def _branch_rows(finder: SiteFinder, one: ResidualSum, branch: Branch, placement: Placement) -> tuple[list[Row], bool]:
    fields = _branch_fields(branch)
    rows = []
    maker = branch_maker(finder, one)
    if maker is not None:
        rows.append(Row(one.branch, f"{finder.name(maker)}:out", "branch", fields))
    name = _sum_site(finder, one)
    if name is not None:
        rows.append(Row(one.node, name, "sum", {**fields, "stream": "post" not in placement.norms}))
    for slot, norm in placement.norms.items():
        normed = finder.maker(norm.output)
        # A norm at the branch's end puts out what the branch does.
        if slot != "end" and normed is not None:
            kind = {"norm_kind": norm.kind, "stream": slot == "post"}
            rows.append(Row(norm.output, f"{finder.name(normed)}:out", "norm", fields | kind))
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
    chain_of = dict[int | None, int | None]((site.block_index, site.chain) for site in sites)
    used_in = _first_uses(finder.graph)
    rows = []
    for order, (raw_name, parameter) in enumerate(model.named_parameters(), start=len(sites)):
        name = clean_name(raw_name)
        owner = name.rpartition(".")[0]
        block = block_of_node.get(used_in.get(name, -1))
        block = block_of_path.get(owner) if block is None and not parts else block
        kind = "weight" if parameter.dim() >= 2 else "parameter"
        shape = tuple(parameter.shape)
        rows.append(Site(name, owner, kind, order, block_index=block, chain=chain_of.get(block), shape=shape))
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
