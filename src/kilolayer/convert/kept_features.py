"""Which outputs of a matrix a view keeps, found by taking their numbers along the same way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from kilolayer.structure.graph import Graph, Node

SAME = ("clone", "contiguous", "alias", "detach", "copy", "_to_copy", "lift_fresh")
RESHAPED = ("view", "reshape", "_unsafe_view", "_reshape_alias", "unsqueeze", "squeeze")
MOVED: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "t": lambda labels, given: labels.t(),
    "transpose": lambda labels, given: labels.transpose(given["dim0"], given["dim1"]),
    "permute": lambda labels, given: labels.permute(given["dims"]),
    "select": lambda labels, given: labels.select(int(given.get("dim", 0)), int(given["index"])),
}


def kept_features(graph: Graph, way: Sequence[int]) -> tuple[int, int] | None:
    """The first output that is kept and the one behind the last, if those that are kept stand beside each other.

    Args:
        graph: holds the nodes.
        way: from a matrix to a view, each the next one's input.

    Returns:
        ``None`` where all are kept, where others stand between them, or where a view cannot be followed.
    """
    shape = graph.nodes[way[0]].shape
    labels: Tensor | None = torch.arange(shape[-1]).expand(shape)
    for index in way[1:]:
        labels = None if labels is None else _follow(labels, graph.nodes[index])
    if labels is None:
        return None
    kept = labels.unique()
    start, stop = int(kept[0]), int(kept[-1]) + 1
    return (start, stop) if kept.numel() == stop - start < shape[-1] else None


def _follow(labels: Tensor, node: Node) -> Tensor | None:
    name = node.arguments.get("view", node.op)
    if node.op in ("shift", "scale") or name in SAME:
        return labels
    if name in RESHAPED:
        return labels.reshape(node.shape)
    if name == "unbind":
        return labels.unbind(int(node.arguments.get("dim", 0)))[node.output]
    return MOVED[name](labels, node.arguments) if name in MOVED else None
