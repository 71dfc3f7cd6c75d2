"""From one pass to tables of plain values: layers, activations, softmaxes, sums and what the loss is given."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from kilolayer.check.losses import BINARY_LOSSES, REGRESSION_LOSSES
from kilolayer.check.probe import Pass
from kilolayer.check.values import Stats
from kilolayer.structure import ops
from kilolayer.structure.contents import read_attention
from kilolayer.structure.graph import Graph, Node
from kilolayer.structure.normal_form import build_graph
from kilolayer.structure.norms import find_norms
from kilolayer.structure.recorder import refs_in
from kilolayer.structure.signal import Signal

MOST_CALLS = 64
"""Runs of one weight that are listed; of further ones the number alone."""

GATHERING = {"index_add", "scatter_add", "scatter_reduce", "index_put", "_sparse_mm", "scatter", "segment_reduce"}

COMPARING = {"sub", "rsub", "add", "mul", "div", "maximum", "minimum", *REGRESSION_LOSSES, *BINARY_LOSSES}
"""Operations on two tensors, entry by entry."""

PASSED = {"view", "scale", "shift", "merge"}
"""Operations a signal goes through without becoming another one."""


class Tables:
    """The tables of one pass.

    Args:
        found: the pass.
        sizes: for each parameter's name its RMS.
    """

    def __init__(self, found: Pass, sizes: dict[str, float]):
        self.found = found
        self.sizes = sizes
        self.graph: Graph = build_graph(found.record)
        self.signal = Signal(self.graph, find_norms(self.graph))
        self.nodes = self.graph.nodes
        self._value_of_node = {node: value for value, node in enumerate(self.graph.node_of_value)}
        self._layer_of_node: dict[int, int] = {}

    def build(self) -> dict[str, Any]:
        """All tables, ready for JSON."""
        layers = list(self._layers())
        return {
            "loss": _number(self.found.loss),
            "layers": layers,
            "activations": list(self._activations()),
            "softmaxes": [*self._softmaxes(), *self.found.attentions],
            "sums": list(self._sums()),
            "losses": [self._loss(one) for one in self.found.losses],
            "mixes_rows": self._mixes_rows(),
            "stretches": list(self._stretches()),
            "outputs": [row for value in self.found.output_values if (row := self._row(value)) is not None],
        }

    # ------------------------------------------------------------------ layers
    def _layers(self) -> Iterator[dict[str, Any]]:
        """Every product of the signal with a matrix of parameters, and every embedding, in order."""
        runs: dict[str, int] = {}
        for node in self.nodes:
            if not (self.graph.is_learned_matrix(node.index) or _is_embedding(node)) or node.kind != "data":
                continue
            weight = self._weight(node)
            names = self.graph.parameter_names(weight) if weight is not None else ()
            name = next((one for one in names if one in self.sizes), names[0] if names else "")
            key = name or self._path(node)
            runs[key] = runs.get(key, 0) + 1
            self._layer_of_node[node.index] = len(self._layer_of_node)
            if runs[key] <= MOST_CALLS:
                yield self._layer(node, name, weight, call=runs[key] - 1)

    def _weight(self, node: Node) -> int | None:
        """The parameter with most entries: the matrix, not the bias."""
        own = [one for one in node.inputs if self.nodes[one].kind == "parameter"]
        return max(own, key=lambda one: math.prod(self.nodes[one].shape), default=None)

    def _layer(self, node: Node, name: str, weight: int | None, *, call: int) -> dict[str, Any]:
        source = next((one for one in node.inputs if self.nodes[one].kind == "data"), None)
        back = self._back(source) if source is not None else _Back()
        own, before = self._stats(node.index), self._stats(source)
        size = self.sizes.get(name)
        fan_in = self._fan_in(node, weight, source)
        return {
            "index": self._layer_of_node[node.index],
            "path": self._path(node),
            "weight": name,
            "call": call,
            "kind": "embedding" if _is_embedding(node) else "conv" if "conv" in node.op else "linear",
            "fan_in": fan_in,
            "fan_out": node.shape[1] if "conv" in node.op and len(node.shape) > 1 else node.shape[-1],
            "weight_rms": _number(size),
            "gain": _number(None if size is None else fan_in * size**2),
            "in_rms": _of(before, "rms"),
            "in_mean": _of(before, "mean"),
            "rms": _of(own, "rms"),
            "std": _of(own, "std"),
            "cosine": _of(own, "cosine"),
            "sample_std": _of(own, "sample_std"),
            "numel": math.prod(node.shape),
            "grad_rms": _number(self._grad(node.index)),
            "previous": back.layer,
            "via": back.kind,
            "between": list(back.activations),
            "norm_before": back.norm,
            **self._ahead(node.index),
        }

    def _fan_in(self, node: Node, weight: int | None, source: int | None) -> int:
        """Numbers that each output is a weighted sum of."""
        if "conv" in node.op and weight is not None:
            return math.prod(self.nodes[weight].shape[1:])
        shape = () if source is None else self.nodes[source].shape
        if _is_embedding(node) or not shape:
            return 1
        is_left = weight is None or node.inputs.index(source) < node.inputs.index(weight)
        return shape[-1] if is_left or len(shape) < 2 else shape[-2]

    def _back(self, index: int) -> _Back:
        """From a layer's input to where it comes from: the layer before, a sum, the input."""
        back = _Back()
        while True:
            node = self.nodes[index]
            norm = self.signal.norm_at.get(index)
            if norm is not None:
                back.norm = back.norm or norm.kind
                index = norm.input
            elif index in self._layer_of_node:
                back.layer, back.kind = self._layer_of_node[index], "layer"
                return back
            elif node.op == "add":
                back.kind = "sum"
                return back
            elif node.op in PASSED or node.op in ops.POOLS:
                index = node.carrier if node.carrier is not None else node.inputs[0]
            elif node.op in ops.ACTIVATIONS or len(list(self.graph.data_inputs(index))) == 1:
                back.activations.append(ops.ACTIVATIONS.get(node.op, node.op))
                index = next(self.graph.data_inputs(index), -1)
                if index < 0:
                    return back
            else:
                back.kind = "input" if node.op == "input" else node.op
                return back

    def _ahead(self, index: int) -> dict[str, Any]:
        """What becomes of a layer's output: its norm, its activation, a sum."""
        norm, seen = None, 0
        while seen < 16:
            seen += 1
            readers = [one for one in self.signal.ahead(index) if self.nodes[one].kind == "data"]
            if not readers:
                return {"norm_after": norm, "activation": None, "into": "end"}
            inside = self.signal.norm_of_member.get(readers[0])
            if inside is not None and inside.input == self.graph.whole(index):
                norm, index = norm or inside.kind, inside.output
                continue
            node = self.nodes[readers[0]]
            if node.op in ("scale", "shift", "merge") and len(readers) == 1:
                index = node.index
                continue
            into = "sum" if node.op == "add" else "layer" if self.graph.is_learned_matrix(node.index) else node.op
            return {"norm_after": norm, "activation": ops.ACTIVATIONS.get(node.op), "into": into}
        return {"norm_after": norm, "activation": None, "into": None}

    # ------------------------------------------------------------------ operations without weights
    def _activations(self) -> Iterator[dict[str, Any]]:
        for node in self.nodes:
            if node.op not in ops.ACTIVATIONS or node.kind != "data" or node.output:
                continue
            stats, before = self._stats(node.index), self._stats(node.inputs[0])
            back = self._back(next(self.graph.data_inputs(node.index), node.index))
            if stats is None:
                continue
            yield {
                "name": ops.ACTIVATIONS[node.op],
                "path": self._path(node),
                "layer": back.layer,
                "is_output": self._reaches_loss_alone(node.index),
                "zero_share": _number(stats.zero_share),
                "dead_share": _number(stats.dead_share),
                "saturated_share": _number(stats.saturated_share),
                "rms": _number(stats.rms),
                "grad_rms": _number(self._grad(node.index)),
                "in_rms": _of(before, "rms"),
                "in_max": _of(before, "max_abs"),
            }

    def _softmaxes(self) -> Iterator[dict[str, Any]]:
        for node in self.nodes:
            if node.op not in ops.SOFTMAX or node.kind != "data" or node.output:
                continue
            stats = self._stats(node.index)
            product = self._product_ahead(node.index)
            scores, factor = self._scores(node.inputs[0])
            before = self._stats(scores)
            dim = node.arguments.get("dim", -1)
            rank = len(node.shape)
            yield {
                "path": self._path(node),
                "is_attention": product is not None,
                "is_wrong_axis": product is not None and isinstance(dim, int) and rank > 1 and dim % rank != rank - 1,
                "peak": _of(stats, "peak"),
                "row_size": stats.row_size if stats else 0,
                "logits_rms": _number(None if before is None else abs(factor) * before.rms),
                "logits_max": _number(None if before is None else abs(factor) * before.max_abs),
                "is_scaled": read_attention(self.signal, [node.index]) != "unscaled",
                "query_size": None if product is None else self._query_size(scores),
            }

    def _product_ahead(self, index: int) -> int | None:
        """The product of signals that reads a softmax as its left factor, rows kept as they are."""
        for _ in range(8):
            readers = [one for one in self.graph.users[index] if self.nodes[one].kind == "data"]
            for reader in readers:
                node = self.nodes[reader]
                if node.op in ops.MATRICES and not self.graph.is_learned_matrix(reader):
                    return reader if node.inputs and node.inputs[0] == index else None
            views = [one for one in readers if self._keeps_rows(one)]
            if not views:
                return None
            index = views[0]
        return None

    def _keeps_rows(self, index: int) -> bool:
        node = self.nodes[index]
        if node.op == "scale":
            return True
        before = self.nodes[node.inputs[0]].shape if node.inputs else ()
        moved = node.arguments.get("view") in ("transpose", "permute", "t", "movedim", "swapaxes")
        return node.op == "view" and not moved and node.shape[-1:] == before[-1:]

    def _scores(self, index: int) -> tuple[int, float]:
        """The product that a softmax reads behind masks and factors, and the constant on it."""
        factor = 1.0
        for _ in range(12):
            node = self.nodes[index]
            sources = list(self.graph.data_inputs(index))
            if node.op in ops.MATRICES or not sources:
                break
            factor *= node.constant if node.op == "scale" and node.arguments.get("mask") is None else 1.0
            index = node.carrier if node.carrier is not None else sources[0]
        return index, factor

    def _query_size(self, index: int) -> int | None:
        """Entries of a query, d in 1/sqrt(d): the dimension that the scores' product sums over."""
        node = self.nodes[index]
        shape = self.nodes[node.inputs[0]].shape if node.op in ops.MATRICES else ()
        return shape[-1] if shape else None

    def _sums(self) -> Iterator[dict[str, Any]]:
        """Sums of two signals: sizes of both sides, and whether they are one and the same."""
        for node in self.nodes:
            if node.op != "add" or len(node.terms) != 2:
                continue
            sides = [self.graph.whole(term.node) for term in node.terms]
            sizes = [self._stats(term.node) for term in node.terms]
            own = self._stats(node.index)
            yield {
                "path": self._path(node),
                "is_doubled": sides[0] == sides[1],
                "rms": _of(own, "rms"),
                "sides": [_of(one, "rms") for one in sizes],
                "sample_stds": [_of(one, "sample_std") for one in sizes],
                "constants": [term.constant for term in node.terms],
                "sources": [self.nodes[one].op for one in sides],
            }

    # ------------------------------------------------------------------ the loss
    def _loss(self, one: Any) -> dict[str, Any]:
        """What a loss operation is given, and the last things that were done to it."""
        row = {key: value for key, value in dataclasses.asdict(one).items() if key not in ("value", "target")}
        row = {key: _number(value) if isinstance(value, float) else value for key, value in row.items()}
        row["normalized_dims"], row["shape"] = list(one.normalized_dims), list(one.shape)
        row["done"] = self._done_to(self.graph.node_of_value[one.value])
        row["is_data_target"] = self.nodes[self.graph.node_of_value[one.target]].kind in ("data", "mask")
        return row

    def _stretches(self) -> Iterator[dict[str, Any]]:
        """Operations behind the model that compare a tensor of its with one of the batch's in a shape of neither."""
        record = self.found.record
        after = set(range(self.found.loss_call, len(record.operations))) if self.found.loss_call else set()
        for number in sorted(after):
            operation = record.operations[number]
            if operation.name not in COMPARING or not operation.outputs:
                continue
            ends = [self.graph.node_of_value[ref.value] for ref in refs_in(operation.arguments)][:2]
            size = math.prod(record.values[operation.outputs[0]].shape)
            size = max([size, *(math.prod(self.nodes[end].shape) for end in ends)])
            if len(ends) < 2 or any(self._was_unsqueezed(end) for end in ends):
                continue
            sizes = [self._size_before_stretch(end) for end in ends]
            if max(sizes) < size and len({self._is_of_model(end) for end in ends}) == 2:
                shapes = [list(self._before_stretch(end).shape) for end in ends]
                yield {"operation": operation.name, "shapes": shapes, "sizes": sizes, "size": size}

    def _mixes_rows(self) -> bool:
        """Whether the model gathers along its first dimension on purpose, as networks on graphs do."""
        for node in self.nodes:
            if node.kind != "data":
                continue
            if node.op in GATHERING:
                return True
            constant = [
                one for one in node.inputs if self.nodes[one].kind == "constant" and len(self.nodes[one].shape) > 1
            ]
            if node.op in ops.MATRICES and constant and node.inputs[0] == constant[0]:
                return True
        return False

    def _is_constant_matrix(self, index: int) -> bool:
        return self.nodes[index].kind == "constant" and len(self.nodes[index].shape) > 1

    def _before_stretch(self, index: int) -> Node:
        while self.nodes[index].op == "view" and self.nodes[index].arguments.get("view") == "expand":
            index = self.nodes[index].inputs[0]
        return self.nodes[index]

    def _was_unsqueezed(self, index: int) -> bool:
        """Whether a dimension was put in behind the model: then all pairs are what is wanted."""
        while self.nodes[index].op == "view":
            if self.nodes[index].arguments.get("view") == "unsqueeze" and not self._is_inside_model(index):
                return True
            index = self.nodes[index].inputs[0]
        return False

    def _is_inside_model(self, index: int) -> bool:
        value = self._value_of_node.get(index)
        number = None if value is None else self.found.record.values[value].operation
        return number is not None and number < self.found.loss_call

    def _is_of_model(self, index: int) -> bool:
        """Whether a trained parameter had a part in a node."""
        seen, open_nodes = set(), [index]
        while open_nodes:
            node = open_nodes.pop()
            if node in seen:
                continue
            seen.add(node)
            if self.nodes[node].kind == "parameter":
                return True
            open_nodes += self.nodes[node].inputs
        return False

    def _done_to(self, index: int) -> list[dict[str, Any]]:
        """The operations in front of the loss, the last first, down to the last matrix."""
        done: list[dict[str, Any]] = []
        while len(done) < 6:
            node = self.nodes[index]
            if node.op in ops.SOFTMAX or node.op in ("_log_softmax", "log_softmax"):
                dim = node.arguments.get("dim", -1)
                kind = "log_softmax" if "log" in node.op else "softmax"
                size = node.shape[dim] if node.shape else 1
                done.append({"operation": kind, "dim": dim % max(len(node.shape), 1), "size": size,
                             "path": self._path(node)})  # fmt: skip
            elif node.op in ops.ACTIVATIONS:
                done.append({"operation": ops.ACTIVATIONS[node.op], "path": self._path(node)})
            elif node.op in ("log", "exp"):
                done.append({"operation": node.op, "path": self._path(node)})
            elif node.op not in PASSED:
                return done
            sources = list(self.graph.data_inputs(index))
            if not sources:
                return done
            index = node.carrier if node.carrier is not None else sources[0]
        return done

    def _size_before_stretch(self, index: int) -> int:
        """Entries before ``expand`` made more of them."""
        return math.prod(self._before_stretch(index).shape)

    def _reaches_loss_alone(self, index: int) -> bool:
        """Whether no matrix lies between an operation and the loss."""
        open_nodes, seen = [index], set()
        while open_nodes:
            node = open_nodes.pop()
            if node in seen:
                continue
            seen.add(node)
            if node != index and (self.graph.is_learned_matrix(node) or len(seen) > 200):
                return False
            open_nodes += self.graph.users[node]
        return True

    # ------------------------------------------------------------------ small things
    def _row(self, value: int) -> dict[str, Any] | None:
        stats = self.found.stats.get(value)
        if stats is None:
            return None
        return {
            "shape": list(self.found.record.values[value].shape),
            "rms": _number(stats.rms),
            "max_abs": _number(stats.max_abs),
            "sample_std": _number(stats.sample_std),
            "grad_rms": _number(self.found.grads.get(value)),
        }

    def _path(self, node: Node) -> str:
        return self.graph.calls[node.call].path

    def _stats(self, index: int | None) -> Stats | None:
        if index is None:
            return None
        value = self._value_of_node.get(index)
        return None if value is None else self.found.stats.get(value)

    def _grad(self, index: int) -> float | None:
        value = self._value_of_node.get(index)
        return None if value is None else self.found.grads.get(value)


@dataclasses.dataclass
class _Back:
    layer: int | None = None
    kind: str | None = None
    norm: str | None = None
    activations: list[str] = dataclasses.field(default_factory=list)


def _is_embedding(node: Node) -> bool:
    return node.op == "embedding"


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _of(stats: Stats | None, name: str) -> float | None:
    return None if stats is None else _number(getattr(stats, name))
