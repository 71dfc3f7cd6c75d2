"""The tables of one pass's loss: what it is given, what was done to that, and shapes that do not fit."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from kilolayer.check.losses import BINARY_LOSSES, REGRESSION_LOSSES
from kilolayer.check.pass_reader import PASSED, PassReader, number
from kilolayer.structure import ops
from kilolayer.structure.graph import Node
from kilolayer.structure.recorder import refs_in

GATHERING = {"index_add", "scatter_add", "scatter_reduce", "index_put", "_sparse_mm", "scatter", "segment_reduce"}

COMPARING = {"sub", "rsub", "add", "mul", "div", "maximum", "minimum", *REGRESSION_LOSSES, *BINARY_LOSSES}
"""Operations on two tensors, entry by entry."""


def loss_row(reader: PassReader, one: Any) -> dict[str, Any]:
    """What a loss operation is given, and the last things that were done to it."""
    row = {key: value for key, value in dataclasses.asdict(one).items() if key not in ("value", "target")}
    row = {key: number(value) if isinstance(value, float) else value for key, value in row.items()}
    row["normalized_dims"], row["shape"] = list(one.normalized_dims), list(one.shape)
    row["done"] = _done_to(reader, reader.graph.node_of_value[one.value])
    row["is_data_target"] = reader.nodes[reader.graph.node_of_value[one.target]].kind in ("data", "mask")
    return row


def stretch_rows(reader: PassReader) -> Iterator[dict[str, Any]]:
    """Operations behind the model that compare a tensor of its with one of the batch's in a shape of neither."""
    record = reader.found.record
    after = set(range(reader.found.loss_call, len(record.operations))) if reader.found.loss_call else set()
    for index in sorted(after):
        operation = record.operations[index]
        if operation.name not in COMPARING or not operation.outputs:
            continue
        ends = [reader.graph.node_of_value[ref.value] for ref in refs_in(operation.arguments)][:2]
        size = math.prod(record.values[operation.outputs[0]].shape)
        size = max([size, *(math.prod(reader.nodes[end].shape) for end in ends)])
        if len(ends) < 2 or any(_was_unsqueezed(reader, end) for end in ends):
            continue
        sizes = [_size_before_stretch(reader, end) for end in ends]
        if max(sizes) < size and len({_is_of_model(reader, end) for end in ends}) == 2:
            shapes = [list(_before_stretch(reader, end).shape) for end in ends]
            yield {"operation": operation.name, "shapes": shapes, "sizes": sizes, "size": size}


def mixes_rows(reader: PassReader) -> bool:
    """Whether the model gathers along its first dimension on purpose, as networks on graphs do."""
    for node in reader.nodes:
        if node.kind != "data":
            continue
        if node.op in GATHERING:
            return True
        constant = [
            one for one in node.inputs if reader.nodes[one].kind == "constant" and len(reader.nodes[one].shape) > 1
        ]
        if node.op in ops.MATRICES and constant and node.inputs[0] == constant[0]:
            return True
    return False


def _before_stretch(reader: PassReader, index: int) -> Node:
    while reader.nodes[index].op == "view" and reader.nodes[index].arguments.get("view") == "expand":
        index = reader.nodes[index].inputs[0]
    return reader.nodes[index]


def _was_unsqueezed(reader: PassReader, index: int) -> bool:
    """Whether a dimension was put in behind the model: then all pairs are what is wanted."""
    while reader.nodes[index].op == "view":
        if reader.nodes[index].arguments.get("view") == "unsqueeze" and not _is_inside_model(reader, index):
            return True
        index = reader.nodes[index].inputs[0]
    return False


def _is_inside_model(reader: PassReader, index: int) -> bool:
    value = reader.value_of_node.get(index)
    operation = None if value is None else reader.found.record.values[value].operation
    return operation is not None and operation < reader.found.loss_call


def _is_of_model(reader: PassReader, index: int) -> bool:
    """Whether a trained parameter had a part in a node."""
    seen, open_nodes = set(), [index]
    while open_nodes:
        node = open_nodes.pop()
        if node in seen:
            continue
        seen.add(node)
        if reader.nodes[node].kind == "parameter":
            return True
        open_nodes += reader.nodes[node].inputs
    return False


def _done_to(reader: PassReader, index: int) -> list[dict[str, Any]]:
    """The operations in front of the loss, the last first, down to the last matrix."""
    done: list[dict[str, Any]] = []
    while len(done) < 6:
        node = reader.nodes[index]
        if node.op in ops.SOFTMAX or node.op in ("_log_softmax", "log_softmax"):
            dim = node.arguments.get("dim", -1)
            kind = "log_softmax" if "log" in node.op else "softmax"
            size = node.shape[dim] if node.shape else 1
            done.append({"operation": kind, "dim": dim % max(len(node.shape), 1), "size": size,
                         "path": reader.path(node)})  # fmt: skip
        elif node.op in ops.ACTIVATIONS:
            done.append({"operation": ops.ACTIVATIONS[node.op], "path": reader.path(node)})
        elif node.op in ("log", "exp"):
            done.append({"operation": node.op, "path": reader.path(node)})
        elif node.op not in PASSED:
            return done
        sources = list(reader.graph.data_inputs(index))
        if not sources:
            return done
        index = node.carrier if node.carrier is not None else sources[0]
    return done


def _size_before_stretch(reader: PassReader, index: int) -> int:
    """Entries before ``expand`` made more of them."""
    return math.prod(_before_stretch(reader, index).shape)
