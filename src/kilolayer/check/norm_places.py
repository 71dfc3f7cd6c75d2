"""Norms that stand where none should: on a skip that its branch goes around, and over a single entry."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from kilolayer.check.probe import Pass
from kilolayer.check.values import Stats
from kilolayer.structure.norms import Norm
from kilolayer.structure.signal import Signal
from kilolayer.structure.sums import has_branch, is_plain_sum


def normed_skips(signal: Signal, found: Pass, value_of: dict[int, int]) -> list[dict[str, Any]]:
    """Sums ``norm(x) + branch(x)``: the branch reads what the norm reads, not what it makes."""

    def stats(node: int) -> Stats | None:
        return found.stats.get(value_of.get(node, -1))

    rows = []
    for node in signal.nodes:
        if not node.terms or node.index in signal.norm_of_member or not is_plain_sum(signal.graph, node):
            continue
        first, second = (term.node for term in node.terms)
        for skip, branch in ((first, second), (second, first)):
            norm = _norm_gone_around(signal, skip, branch)
            if norm is None:
                continue
            sizes = {"skip": stats(skip), "branch": stats(branch), "sum": stats(node.index)}
            rows.append(
                {
                    "path": signal.graph.calls[node.call].path,
                    "norm": signal.graph.calls[signal.nodes[norm.output].call].path,
                    "norm_kind": norm.kind,
                    "entries": sorted(set(_entries(signal, norm, branch))),
                    **{f"{name}_rms": None if one is None else one.rms for name, one in sizes.items()},
                }
            )
            break
    return rows


def _norm_gone_around(signal: Signal, skip: int, branch: int) -> Norm | None:
    *_, (end, _) = signal.back(skip)
    norm = signal.norm_at.get(end)
    if norm is None:
        return None
    region = signal.graph.between(norm.input, branch)
    is_around = bool(region) and norm.output not in region and has_branch(signal, region - {norm.input})
    return norm if is_around else None


def _entries(signal: Signal, norm: Norm, branch: int) -> Iterator[str]:
    """The modules whose operations read the norm's input on the way to the branch's end."""
    region = signal.graph.between(norm.input, branch)
    for user in signal.ahead(norm.input, within=region):
        yield signal.graph.calls[signal.nodes[user].call].path


def norms_over_one(signal: Signal) -> list[dict[str, Any]]:
    """Layer and RMS norms over one entry each: what comes out does not depend on the size of what comes in."""
    rows = []
    for norm in signal.norms:
        shape = signal.nodes[norm.output].shape
        sizes = [signal.nodes[one].arguments.get("normalized_shape") for one in norm.members]
        over = next((math.prod(size) for size in sizes if isinstance(size, (list, tuple))), None)
        if norm.kind in ("layer", "rms") and over == 1 and shape:
            path = signal.graph.calls[signal.nodes[norm.output].call].path
            rows.append({"path": path, "norm_kind": norm.kind, "size": over})
    return rows
