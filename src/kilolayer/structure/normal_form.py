"""From operations as they ran to a graph in normal form, so that one sum is written in one way only.

``addmm`` and ``addcmul`` with a signal as their first argument, ``lerp``, ``torch.stack(...).sum()``, ``sub`` and
``add`` with ``alpha`` all become ``add`` nodes of two terms with constant factors.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch

from kilolayer.structure import ops
from kilolayer.structure.graph import Graph, Kind, Node, Term, mean_of
from kilolayer.structure.record import MERGE, Operation, Record, Ref, Value
from kilolayer.structure.recorder import refs_in

_PRODUCTS = {"addmm": ("mm", "mat1", "mat2"), "baddbmm": ("bmm", "batch1", "batch2"), "addmv": ("mv", "mat", "vec")}
_POINTWISE = {"addcmul": "mul", "addcdiv": "div"}


def build_graph(record: Record) -> Graph:
    """The graph of a record."""
    return _Builder(record).build()


class _Builder:
    def __init__(self, record: Record):
        self._record = record
        self._nodes: list[Node] = []
        self._of_value: list[int] = []

    def build(self) -> Graph:
        for value in self._record.values:
            if value.operation is None:
                self._add_source(value)
            else:
                self._add_operation(self._record.operations[value.operation], value)
            self._of_value.append(len(self._nodes) - 1)
        outputs = [self._of_value[value] for value in self._record.outputs]
        return Graph(self._nodes, self._record.calls, outputs, self._of_value)

    def _add_source(self, value: Value) -> None:
        kinds: dict[str | None, Kind] = {"parameter": "parameter", "input": "data" if value.is_float else "mask"}
        self._nodes.append(
            Node(
                len(self._nodes),
                str(value.source),
                (),
                kinds.get(value.source, "constant"),
                value.shape,
                value.is_float,
                0,
                name=value.name,
                tensor=value.tensor,
                mean=value.mean,
            )
        )

    def _add_operation(self, operation: Operation, value: Value) -> None:
        arguments = {
            name: Ref(self._of_value[argument.value]) if isinstance(argument, Ref) else argument
            for name, argument in operation.arguments.items()
        }
        inputs = tuple(self._of_value[ref.value] for ref in refs_in(operation.arguments))
        if operation.name in ops.SHAPE_ONLY:
            inputs = ()
        node = Node(
            len(self._nodes),
            operation.name,
            inputs,
            self._kind(inputs, is_random=operation.is_random),
            value.shape,
            value.is_float,
            operation.call,
            arguments=arguments,
            output=value.output,
            mean=value.mean,
        )
        is_opaque = operation.namespace not in ("aten", "", "prim", "prims") or operation.name in ops.KNOWN_FUSED
        if is_opaque and operation.name not in ops.ATTENTION and node.kind == "data":
            node.opaque = f"{operation.namespace}::{operation.name}"
        self._normalize(node)

    def _kind(self, inputs: tuple[int, ...], *, is_random: bool) -> Kind:
        kinds: set[Kind] = {self._nodes[one].kind for one in inputs}
        if "data" in kinds or {"mask", "parameter"} <= kinds:
            return "data"
        order: tuple[Kind, ...] = ("mask", "parameter", "random")
        for kind in order:
            if kind in kinds:
                return kind
        return "random" if is_random else "constant"

    # ------------------------------------------------------------------ normal form
    def _normalize(self, node: Node) -> None:
        name = node.op
        if node.kind != "data":
            self._append(node)
        elif name in _PRODUCTS and self._is_data(node.arguments.get("self")):
            self._split_product(node, *_PRODUCTS[name])
        elif name in _POINTWISE:
            self._split_pointwise(node, _POINTWISE[name])
        elif name in ("add", "sub", "rsub", "subtract"):
            self._append(self._as_sum_or_shift(node))
        elif name == "lerp":
            self._append(self._as_lerp(node))
        elif name == "sum" and self._is_stack_of_two(node):
            stack = self._nodes[node.inputs[0]]
            self._append(self._sum(node, Term(stack.inputs[0]), Term(stack.inputs[1])))
        elif name in ("mul", "div", "true_divide", "neg", "multiply", "masked_fill", "where"):
            self._append(self._as_scale(node))
        else:
            self._append(self._as_view(node))

    def _append(self, node: Node) -> int:
        node.index = len(self._nodes)
        self._nodes.append(node)
        return node.index

    def _is_data(self, argument: Any) -> bool:
        return isinstance(argument, Ref) and self._nodes[argument.value].kind == "data"

    def _sum(self, node: Node, *terms: Term) -> Node:
        return dataclasses.replace(node, op="add", inputs=tuple(term.node for term in terms), terms=terms)

    def _split_product(self, node: Node, op: str, left: str, right: str) -> None:
        factors = (node.arguments[left].value, node.arguments[right].value)
        product = self._append(
            dataclasses.replace(node, op=op, inputs=factors, kind=self._kind(factors, is_random=False))
        )
        skip = Term(node.arguments["self"].value, float(node.arguments.get("beta", 1)))
        self._append(self._sum(node, skip, Term(product, float(node.arguments.get("alpha", 1)))))

    def _split_pointwise(self, node: Node, op: str) -> None:
        factors = (node.arguments["tensor1"].value, node.arguments["tensor2"].value)
        shape = tuple(torch.broadcast_shapes(*(self._nodes[one].shape for one in factors)))
        kind = self._kind(factors, is_random=False)
        arguments: dict[str, Any] = {"self": Ref(factors[0]), "other": Ref(factors[1])}
        product = dataclasses.replace(node, op=op, inputs=factors, shape=shape, kind=kind, arguments=arguments)
        index = self._append(self._as_scale(product) if kind == "data" else product)
        alpha = float(node.arguments.get("value", 1))
        arguments = {"self": node.arguments["self"], "other": Ref(index), "alpha": alpha}
        inputs = (node.arguments["self"].value, index)
        self._append(self._as_sum_or_shift(dataclasses.replace(node, op="add", inputs=inputs, arguments=arguments)))

    def _as_sum_or_shift(self, node: Node) -> Node:
        first: Any = node.arguments.get("self")
        second: Any = node.arguments.get("other")
        alpha = float(node.arguments.get("alpha", 1))
        signs = {"add": (1.0, alpha), "rsub": (-alpha, 1.0)}.get(node.op, (1.0, -alpha))
        if self._is_data(first) and self._is_data(second):
            return self._sum(node, Term(first.value, signs[0]), Term(second.value, signs[1]))
        carrier, sign = (first, signs[0]) if self._is_data(first) else (second, signs[1])
        if not isinstance(carrier, Ref):
            return node
        return dataclasses.replace(node, op="shift", carrier=carrier.value, constant=sign)

    def _as_lerp(self, node: Node) -> Node:
        start, end, weight = (node.arguments[name] for name in ("self", "end", "weight"))
        if not (self._is_data(start) and self._is_data(end)):
            return node
        if not isinstance(weight, Ref):
            return self._sum(node, Term(start.value, 1 - float(weight)), Term(end.value, float(weight)))
        known = self._nodes[weight.value]
        if known.kind == "parameter":
            return self._sum(node, Term(start.value, 1.0, weight.value), Term(end.value, 1.0, weight.value))
        if known.kind == "constant" and (mean := mean_of(self._nodes, known.index)) is not None:
            return self._sum(node, Term(start.value, 1 - mean), Term(end.value, mean))
        return node

    def _is_stack_of_two(self, node: Node) -> bool:
        stack = self._nodes[node.inputs[0]]
        if stack.op != "stack" or len(stack.inputs) != 2 or node.arguments.get("keepdim"):
            return False
        dims = node.arguments.get("dim")
        along = stack.arguments.get("dim", 0) % len(stack.shape)
        both_data = all(self._nodes[one].kind == "data" for one in stack.inputs)
        return both_data and isinstance(dims, (list, tuple)) and [dim % len(stack.shape) for dim in dims] == [along]

    def _as_scale(self, node: Node) -> Node:
        """A node that multiplies the signal with something that is none; any other is returned as it is."""
        if node.op == "neg":
            return dataclasses.replace(node, op="scale", carrier=node.inputs[0], constant=-1.0)
        carriers = [one for one in node.inputs if self._nodes[one].kind == "data"]
        if len(carriers) != 1 or node.arguments.get("rounding_mode"):
            return node
        scaled = dataclasses.replace(node, op="scale", carrier=carriers[0])
        if node.op in ("masked_fill", "where"):
            return scaled
        first: Any = node.arguments.get("self")
        other: Any = node.arguments.get("other")
        divides = node.op not in ("mul", "multiply")
        if not self._is_data(first):
            if divides:
                return node
            other = first
        factor = self._nodes[other.value] if isinstance(other, Ref) else None
        if factor is not None and factor.kind == "parameter":
            scaled.parameter = factor.index
        elif factor is None or factor.kind == "constant":
            number = float(other) if factor is None else mean_of(self._nodes, factor.index)
            if number is not None and not (divides and number == 0):
                scaled.constant = 1 / number if divides else number
        if not math.isfinite(scaled.constant):
            scaled.constant = 1.0
        scaled.arguments = {**node.arguments, "is_random": factor is not None and factor.kind == "random"}
        return scaled

    def _as_view(self, node: Node) -> Node:
        if node.op == "copy" and isinstance(node.arguments.get("src"), Ref):
            source = node.arguments["src"].value
            return dataclasses.replace(node, op="view", inputs=(source,), kind=self._nodes[source].kind, is_whole=True)
        if node.op == MERGE and "old" in node.arguments:
            return node
        if node.op in ops.VIEWS or node.op in ops.DROPOUTS or node.op == MERGE:
            is_whole = node.op in ops.WHOLE_VIEWS
            return dataclasses.replace(
                node, op="view", arguments={**node.arguments, "view": node.op}, is_whole=is_whole
            )
        return node
