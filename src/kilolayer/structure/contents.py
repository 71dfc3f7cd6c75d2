"""What a branch holds: activations, and attention, scaled or not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from kilolayer.structure import ops
from kilolayer.structure.graph import Node
from kilolayer.structure.signal import Signal

Attention = Literal["scaled", "unscaled"]


def name_activations(signal: Signal, region: Iterable[int]) -> tuple[str, ...]:
    """The activations among nodes, in order, each once; gates and hand-written ones by the name they go by."""
    names = [
        name
        for index in sorted(region)
        if index not in signal.norm_of_member and (name := _activation(signal, signal.nodes[index])) is not None
    ]
    return tuple(dict.fromkeys(names))


def _activation(signal: Signal, node: Node) -> str | None:
    if node.op == "clamp" and node.arguments.get("min") == 0 and node.arguments.get("max") is None:
        return "relu"
    name = ops.ACTIVATIONS.get(node.op)
    if node.op in ("clamp_min", "threshold"):
        return name if node.arguments.get("min", node.arguments.get("threshold")) == 0 else None
    if name in ("sigmoid", "tanh", "erf") and _multiplies_own_argument(signal, node):
        return {"sigmoid": "silu", "tanh": "gelu", "erf": "gelu"}[name]
    return name


def _multiplies_own_argument(signal: Signal, node: Node) -> bool:
    """Whether the function's result gates the function's own argument, as in ``x * sigmoid(x)``."""
    argument = {index for index, _ in signal.back(node.inputs[0])}
    if node.op != "sigmoid":
        argument |= {one for index in list(argument) for one in signal.graph.ancestors(index, down_to=index - 8)}
    gate, open_nodes = set(), [node.index]
    while open_nodes:
        index = open_nodes.pop()
        gate.add(index)
        open_nodes += [
            user for user in signal.graph.users[index] if signal.nodes[user].op in ("view", "scale", "shift")
        ]
    for index in gate:
        for user in signal.graph.users[index]:
            if signal.nodes[user].op != "mul":
                continue
            others = [one for one in signal.nodes[user].inputs if one not in gate]
            if any(argument & {behind for behind, _ in signal.back(one)} for one in others):
                return True
    return False


def read_attention(signal: Signal, region: Iterable[int]) -> Attention | None:
    """Whether there is attention among nodes, and whether its scores are scaled."""
    for index in sorted(region):
        node = signal.nodes[index]
        if node.op in ops.ATTENTION:
            return (
                "unscaled" if node.arguments.get("scale") == 1 and not _is_scaled(signal, node.inputs[0]) else "scaled"
            )
        if node.op in ops.SOFTMAX:
            product = _scores(signal, node)
            if product is not None and _mixes_values(signal, node):
                return "scaled" if _is_scaled(signal, node.inputs[0]) else "unscaled"
    return None


def _scores(signal: Signal, node: Node) -> int | None:
    """The product of two signals that a softmax reads."""
    for index in _back_to_products(signal, node.inputs[0]):
        if signal.nodes[index].op in ops.MATRICES and not signal.graph.is_learned_matrix(index):
            return index
    return None


def _back_to_products(signal: Signal, index: int) -> list[int]:
    """Nodes behind scores: sums (biases, masks), scales and views, down to the first products."""
    found, seen, open_nodes = [], set(), [index]
    while open_nodes:
        index = open_nodes.pop()
        if index in seen:
            continue
        seen.add(index)
        found.append(index)
        if signal.nodes[index].op in ("view", "scale", "shift", "add", "merge", "mul", "div", "where", "tanh"):
            open_nodes += signal.graph.data_inputs(index)
    return found


def _mixes_values(signal: Signal, node: Node) -> bool:
    readers, seen = signal.ahead(node.index), set()
    while readers:
        reader = readers.pop()
        if reader in seen:
            continue
        seen.add(reader)
        if signal.nodes[reader].op in ops.MATRICES:
            return not signal.graph.is_learned_matrix(reader)
        if signal.nodes[reader].op in ("scale", "mul"):
            readers += signal.ahead(reader)
    return False


def _is_scaled(signal: Signal, index: int) -> bool:
    """Whether a factor, constant or learned, stands on the scores or on the query or key behind them."""
    for behind in _back_to_products(signal, index):
        node = signal.nodes[behind]
        if _has_factor(signal, node):
            return True
        if node.op in ops.MATRICES and not signal.graph.is_learned_matrix(behind):
            if node.arguments.get("alpha", 1) != 1:
                return True
            operands = [one for source in node.inputs for one in _back_to_products(signal, source)]
            if any(_has_factor(signal, signal.nodes[one]) or one in signal.norm_at for one in operands):
                return True
    return False


def _has_factor(signal: Signal, node: Node) -> bool:
    if node.op == "add":
        return any(abs(term.constant) != 1 for term in node.terms)
    if node.op == "mul":
        return False
    return node.op == "scale" and (node.parameter is not None or abs(node.constant) not in (0.0, 1.0))
