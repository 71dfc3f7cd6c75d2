"""Which matrix of a branch plays which role: told from where its product goes, never from its name."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from kilolayer.convert.branches import Matrix
from kilolayer.convert.kept_features import kept_features
from kilolayer.convert.parameter_names import Names
from kilolayer.schemes import Role
from kilolayer.structure import ops
from kilolayer.structure.graph import Graph
from kilolayer.structure.placement import last_matrices
from kilolayer.structure.signal import Signal
from kilolayer.structure.sums import ResidualSum


def find_matrices(signal: Signal, one: ResidualSum, model: nn.Module, *, names: Names) -> tuple[Matrix, ...]:
    """The matrices of a branch with their roles, in order of execution.

    In attention the matrices behind the scores are query and key, those behind what the scores mix the value; in
    a feed-forward one whose product passes an activation and multiplies another's is the gate.
    """
    last = set(last_matrices(signal, one))
    mixing = _mixing(signal, one)
    found = list(_attention(signal, mixing)) if mixing is not None else list(_feed_forward(signal, one, last))
    role: Role = "feedforward_out" if mixing is None else "attention_out"
    found += [(role, matrix, None) for matrix in sorted(last)]
    if _is_ambiguous(found):
        return ()
    placed: dict[tuple[str, tuple[int, int] | None], Matrix] = {}
    for role, matrix, part in found:
        one_found = _matrix(signal.graph, model, (role, matrix, part), names)
        if one_found is not None:
            placed.setdefault((one_found.weight, one_found.part), one_found)
    return tuple(placed.values())


def _is_ambiguous(found: list[_Found]) -> bool:
    """Whether one matrix has two roles in one place, as where heads hold query, key and value in turn."""
    places = {(matrix, part): role for role, matrix, part in found}
    return any(places[matrix, part] != role for role, matrix, part in found)


_Found = tuple[Role, int, tuple[int, int] | None]


def _matrix(graph: Graph, model: nn.Module, found: _Found, names: Names) -> Matrix | None:
    role, matrix, part = found
    sources = {name: source for source in graph.nodes[matrix].inputs for name in names(source)}
    shapes = {name: tuple(model.get_parameter(name).shape) for name in sources}
    weight = next((name for name, shape in shapes.items() if len(shape) >= 2), None)
    if weight is None:
        return None
    bias = next((name for name, shape in shapes.items() if len(shape) == 1), None) or _bias_behind(graph, matrix, names)
    own = sources[weight]
    inner = _part_of_parameter(graph, own)
    if inner is not None:
        start, stop = part or (0, inner[1] - inner[0])
        part = inner[0] + start, inner[0] + stop
    # The product reads a matrix of inputs by outputs; torch.nn.Linear holds its transpose.
    dim = 0 if _is_transposed(graph, own) else 1
    return Matrix(role, weight, bias, None if part == (0, shapes[weight][dim]) else part, dim)


def _is_transposed(graph: Graph, index: int) -> bool:
    turns = 0
    while graph.nodes[index].inputs:
        turns += graph.nodes[index].arguments.get("view", graph.nodes[index].op) in ("t", "transpose", "permute")
        index = graph.nodes[index].inputs[0]
    return turns % 2 == 1


def _part_of_parameter(graph: Graph, index: int) -> tuple[int, int] | None:
    """The rows of a packed parameter that were split off before it was multiplied."""
    while graph.nodes[index].inputs:
        node = graph.nodes[index]
        part = _slice(graph, index)
        if part is not None:
            return part
        index = node.inputs[0]
    return None


def _slice(graph: Graph, index: int) -> tuple[int, int] | None:
    node = graph.nodes[index]
    name = node.arguments.get("view", node.op)
    if name in ("split", "chunk", "unsafe_split", "unsafe_chunk"):
        whole = graph.nodes[node.inputs[0]].shape
        size = node.arguments.get("split_size")
        dim = node.arguments.get("dim", 0)
        if not isinstance(size, int):
            chunks = int(node.arguments.get("chunks", 1))
            size = -(-whole[dim] // chunks)
        return node.output * size, node.output * size + node.shape[dim]
    if name in ("split_with_sizes", "unsafe_split_with_sizes"):
        sizes = list(node.arguments.get("split_sizes", ()))
        return sum(sizes[: node.output]), sum(sizes[: node.output + 1])
    if name == "slice":
        dim, start = node.arguments.get("dim", 0), int(node.arguments.get("start") or 0)
        size = graph.nodes[node.inputs[0]].shape[dim]
        start = start + size if start < 0 else start
        return start, start + node.shape[dim]
    return None


def _bias_behind(graph: Graph, matrix: int, names: Names) -> str | None:
    index = matrix
    while len(graph.users[index]) == 1:
        index = graph.users[index][0]
        node = graph.nodes[index]
        if node.op == "shift":
            return next((name for source in node.inputs for name in names(source)), None)
        if node.op != "view":
            return None
    return None


def _mixing(signal: Signal, one: ResidualSum) -> tuple[list[int], int] | None:
    """Where attention mixes: the nodes whose products make the scores, and the value's."""
    for index in sorted(one.region):
        node = signal.nodes[index]
        if node.op in ops.ATTENTION:
            return [node.inputs[0], node.inputs[1]], node.inputs[2]
        if node.op in ops.SOFTMAX:
            for reader in _products_ahead(signal, index):
                values = [source for source in signal.nodes[reader].inputs if not _leads_to(signal, source, index)]
                if values:
                    return [node.inputs[0]], values[0]
    return None


def _products_ahead(signal: Signal, index: int) -> Iterator[int]:
    seen, open_nodes = {index}, [index]
    while open_nodes:
        for reader in signal.ahead(open_nodes.pop()):
            if reader in seen:
                continue
            seen.add(reader)
            if signal.nodes[reader].op in ops.MATRICES:
                yield reader
            elif signal.nodes[reader].op in ("scale", "mul", "shift"):
                open_nodes.append(reader)


def _leads_to(signal: Signal, source: int, target: int) -> bool:
    return signal.graph.depends(source, target) if source >= target else False


def _attention(signal: Signal, mixing: tuple[list[int], int]) -> Iterator[_Found]:
    scores, value = mixing
    selecting: list[tuple[int, tuple[int, int] | None]] = []
    for source in scores:
        selecting += [one for one in _matrices_behind(signal, source) if one not in selecting]
    roles: tuple[Role, Role] = ("query", "key")
    for position, (matrix, part) in enumerate(sorted(selecting, key=lambda one: (one[0], one[1] or (0, 0)))):
        yield roles[min(position, 1)], matrix, part
    for matrix, part in _matrices_behind(signal, value):
        yield "value", matrix, part


def _matrices_behind(signal: Signal, index: int) -> list[tuple[int, tuple[int, int] | None]]:
    """The nearest learned matrices a signal was made by, and which part of their outputs went on."""
    found: list[tuple[int, tuple[int, int] | None]] = []
    open_nodes: list[tuple[int, tuple[int, int] | None]] = [(index, None)]
    seen = set(open_nodes)
    while open_nodes:
        index, part = open_nodes.pop(0)
        if signal.graph.is_learned_matrix(index):
            found.append((index, part))
            continue
        part = _feature_part(signal.graph, index) or part
        # A rotation cuts heads in halves and puts them together again: all of it went on.
        part = None if signal.nodes[index].op == "cat" else part
        further = [(one, part) for one in signal.graph.data_inputs(index) if (one, part) not in seen]
        seen.update(further)
        open_nodes += further
    # With one head, halves of a rotation look like parts; the whole beside them says that they are none.
    whole = {matrix for matrix, part in found if part is None}
    return [(matrix, part) for matrix, part in found if part is None or matrix not in whole]


def _feature_part(graph: Graph, index: int) -> tuple[int, int] | None:
    """The outputs of a packed matrix that a view keeps; parts of positions or of single heads are none."""
    node = graph.nodes[index]
    if node.op != "view" or node.is_whole or not node.inputs:
        return None
    matrix = next((one for one in _behind(graph, index) if graph.is_learned_matrix(one)), None)
    if matrix is None:
        return None
    outputs, source = graph.nodes[matrix].shape[-1], graph.nodes[node.inputs[0]]
    dim = int(node.arguments.get("dim", 0)) % len(source.shape)
    if node.arguments.get("view") in ("select", "unbind"):
        # A packed projection is viewed as (2 or 3, ..., width) or (2 or 3, ..., heads, width of a head).
        between = list(_behind(graph, index))
        way = [*reversed(between[: between.index(matrix) + 1]), index]
        part = kept_features(graph, way) if source.shape[dim] in (2, 3) else None
        is_share = part is not None and (part[1] - part[0]) * source.shape[dim] == outputs
        return part if is_share else None
    return _slice(graph, index) if dim == len(source.shape) - 1 and source.shape[-1] == outputs else None


def _behind(graph: Graph, index: int) -> Iterator[int]:
    while graph.nodes[index].op in ("view", "shift", "scale") and graph.nodes[index].inputs:
        node = graph.nodes[index]
        index = node.inputs[0] if node.carrier is None else node.carrier
        yield index


def _feed_forward(signal: Signal, one: ResidualSum, last: set[int]) -> Iterator[_Found]:
    matrices = [index for index in sorted(one.region) if signal.graph.is_learned_matrix(index) and index not in last]
    products = [index for index in one.region if signal.nodes[index].op == "mul"]
    for matrix in matrices:
        role: Role = "feedforward_in"
        if any(_is_gated_by(signal, product, matrix) for product in products):
            role = "feedforward_gate"
        yield role, matrix, None


def _is_gated_by(signal: Signal, product: int, matrix: int) -> bool:
    """Whether one side of a product is an activation of this matrix's output, and the other is not made by it."""
    sides = [signal.graph.between(matrix, side) for side in signal.graph.data_inputs(product)]
    made = [way for way in sides if way]
    return len(sides) == 2 and len(made) == 1 and any(signal.nodes[index].op in ops.ACTIVATIONS for index in made[0])
