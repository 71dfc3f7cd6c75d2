"""From one pass to tables of plain values: layers, activations, softmaxes, sums and what the loss is given."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from kilolayer.check.loss_table import loss_row, mixes_rows, stretch_rows
from kilolayer.check.pass_reader import PASSED, PassReader, number, of
from kilolayer.check.probe import Pass
from kilolayer.check.softmax_table import softmax_rows
from kilolayer.structure import ops
from kilolayer.structure.graph import Node

MOST_CALLS = 64
"""Runs of one weight that are listed; of further ones the number alone."""


class Tables(PassReader):
    """The tables of one pass.

    Args:
        found: the pass.
        sizes: for each parameter's name its RMS.
    """

    def __init__(self, found: Pass, sizes: dict[str, float]):
        super().__init__(found)
        self.sizes = sizes
        self._layer_of_node: dict[int, int] = {}

    def build(self) -> dict[str, Any]:
        """All tables, ready for JSON."""
        layers = list(self._layers())
        return {
            "loss": number(self.found.loss),
            "layers": layers,
            "activations": list(self._activations()),
            "softmaxes": [*softmax_rows(self), *self.found.attentions],
            "sums": list(self._sums()),
            "losses": [loss_row(self, one) for one in self.found.losses],
            "mixes_rows": mixes_rows(self),
            "stretches": list(stretch_rows(self)),
            "outputs": [row for value in self.found.output_values if (row := self.row(value)) is not None],
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
            key = name or self.path(node)
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
        own, before = self.stats(node.index), self.stats(source)
        size = self.sizes.get(name)
        fan_in = self._fan_in(node, weight, source)
        return {
            "index": self._layer_of_node[node.index],
            "path": self.path(node),
            "weight": name,
            "call": call,
            "kind": "embedding" if _is_embedding(node) else "conv" if "conv" in node.op else "linear",
            "fan_in": fan_in,
            "fan_out": node.shape[1] if "conv" in node.op and len(node.shape) > 1 else node.shape[-1],
            "weight_rms": number(size),
            "gain": number(None if size is None else fan_in * size**2),
            "in_rms": of(before, "rms"),
            "in_mean": of(before, "mean"),
            "rms": of(own, "rms"),
            "std": of(own, "std"),
            "cosine": of(own, "cosine"),
            "sample_std": of(own, "sample_std"),
            "numel": math.prod(node.shape),
            "grad_rms": number(self.grad(node.index)),
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
                back.layer, back.kind, back.node = self._layer_of_node[index], "layer", index
                return back
            elif node.op == "add":
                back.kind, back.node = "sum", index
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
            stats, before = self.stats(node.index), self.stats(node.inputs[0])
            back = self._back(next(self.graph.data_inputs(node.index), node.index))
            if stats is None:
                continue
            yield {
                "name": ops.ACTIVATIONS[node.op],
                "path": self.path(node),
                "layer": back.layer,
                "is_output": self._reaches_loss_alone(node.index),
                "is_bypassed": back.node is not None and self._is_bypassed(node.index, back.node),
                "zero_share": number(stats.zero_share),
                "dead_share": number(stats.dead_share),
                "saturated_share": number(stats.saturated_share),
                "rms": number(stats.rms),
                "grad_rms": number(self.grad(node.index)),
                "in_rms": of(before, "rms"),
                "in_max": of(before, "max_abs"),
            }

    def _is_bypassed(self, activation: int, layer: int) -> bool:
        """Whether what the layer in front of an activation reads gets past both by another way, as along a skip."""
        source = next(self.graph.data_inputs(layer), None)
        start = None if source is None else self._back(source).node
        if start is None:
            return False
        # The two ways meet again in the loss at the latest; nodes stand in the order of execution.
        around, through = {start}, {activation}
        index, last = start, max(self.graph.users[start], default=start)
        while index < last:
            index += 1
            before = set(self.graph.data_inputs(index))
            if index == activation or not before & (around | through):
                continue
            if before & around and before & through:
                return True
            (around if before & around else through).add(index)
            if index in around:
                last = max(last, *self.graph.users[index], index)
        return False

    def _sums(self) -> Iterator[dict[str, Any]]:
        """Sums of two signals: sizes of both sides, and whether they are one and the same."""
        for node in self.nodes:
            if node.op != "add" or len(node.terms) != 2:
                continue
            sides = [self.graph.whole(term.node) for term in node.terms]
            sizes = [self.stats(term.node) for term in node.terms]
            own = self.stats(node.index)
            yield {
                "path": self.path(node),
                "is_doubled": sides[0] == sides[1],
                "rms": of(own, "rms"),
                "sides": [of(one, "rms") for one in sizes],
                "sample_stds": [of(one, "sample_std") for one in sizes],
                "constants": [term.constant for term in node.terms],
                "sources": [self.nodes[one].op for one in sides],
            }

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


@dataclasses.dataclass
class _Back:
    layer: int | None = None
    kind: str | None = None
    norm: str | None = None
    node: int | None = None
    activations: list[str] = dataclasses.field(default_factory=list)


def _is_embedding(node: Node) -> bool:
    return node.op == "embedding"
