"""The table of softmaxes of one pass: which are attention, and what goes into them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kilolayer.check.pass_reader import PassReader, number, of
from kilolayer.structure import ops
from kilolayer.structure.contents import read_attention


def softmax_rows(reader: PassReader) -> Iterator[dict[str, Any]]:
    for node in reader.nodes:
        if node.op not in ops.SOFTMAX or node.kind != "data" or node.output:
            continue
        stats = reader.stats(node.index)
        product = _product_ahead(reader, node.index)
        scores, factor = _scores(reader, node.inputs[0])
        before = reader.stats(scores)
        dim = node.arguments.get("dim", -1)
        rank = len(node.shape)
        yield {
            "path": reader.path(node),
            "is_attention": product is not None,
            "is_wrong_axis": product is not None and isinstance(dim, int) and rank > 1 and dim % rank != rank - 1,
            "peak": of(stats, "peak"),
            "row_size": stats.row_size if stats else 0,
            "logits_rms": number(None if before is None else abs(factor) * before.rms),
            "logits_max": number(None if before is None else abs(factor) * before.max_abs),
            "is_scaled": read_attention(reader.signal, [node.index]) != "unscaled",
            "query_size": None if product is None else _query_size(reader, scores),
        }


def _product_ahead(reader: PassReader, index: int) -> int | None:
    """The product of signals that reads a softmax as its left factor, rows kept as they are."""
    for _ in range(8):
        users = [one for one in reader.graph.users[index] if reader.nodes[one].kind == "data"]
        for user in users:
            node = reader.nodes[user]
            if node.op in ops.MATRICES and not reader.graph.is_learned_matrix(user):
                return user if node.inputs and node.inputs[0] == index else None
        views = [one for one in users if _keeps_rows(reader, one)]
        if not views:
            return None
        index = views[0]
    return None


def _keeps_rows(reader: PassReader, index: int) -> bool:
    node = reader.nodes[index]
    if node.op == "scale":
        return True
    before = reader.nodes[node.inputs[0]].shape if node.inputs else ()
    moved = node.arguments.get("view") in ("transpose", "permute", "t", "movedim", "swapaxes")
    return node.op == "view" and not moved and node.shape[-1:] == before[-1:]


def _scores(reader: PassReader, index: int) -> tuple[int, float]:
    """The product that a softmax reads behind masks and factors, and the constant on it."""
    factor = 1.0
    for _ in range(12):
        node = reader.nodes[index]
        sources = list(reader.graph.data_inputs(index))
        if node.op in ops.MATRICES or not sources:
            break
        factor *= node.constant if node.op == "scale" and node.arguments.get("mask") is None else 1.0
        index = node.carrier if node.carrier is not None else sources[0]
    return index, factor


def _query_size(reader: PassReader, index: int) -> int | None:
    """Entries of a query, d in 1/sqrt(d): the dimension that the scores' product sums over."""
    node = reader.nodes[index]
    shape = reader.nodes[node.inputs[0]].shape if node.op in ops.MATRICES else ()
    return shape[-1] if shape else None
