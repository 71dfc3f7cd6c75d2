"""Operations in normal form, and questions to the graph."""

import math

import pytest
import torch
from structure_tools import WIDTH, graph_of
from torch import nn

X = torch.randn(3, WIDTH)


def nodes(graph, op):
    return [node for node in graph.nodes if node.op == op]


SUMS = {
    "x + f": (lambda m, x: x + m.f(x), (1.0, 1.0)),
    "alpha": (lambda m, x: torch.add(x, m.f(x), alpha=0.5), (1.0, 0.5)),
    "x - f": (lambda m, x: x - m.f(x), (1.0, -1.0)),
    "rsub": (lambda m, x: torch.rsub(m.f(x), x, alpha=2), (-2.0, 1.0)),
    "lerp": (lambda m, x: torch.lerp(x, m.f(x), 0.25), (0.75, 0.25)),
    "stack": (lambda m, x: torch.stack([x, m.f(x)]).sum(0), (1.0, 1.0)),
    "addmm": (lambda m, x: torch.addmm(x, m.f(x), m.g.weight, beta=0.9, alpha=0.7), (0.9, 0.7)),
    "in place": (lambda m, x: m.f(x).add_(x), (1.0, 1.0)),
}


@pytest.mark.parametrize("name", SUMS)
def test_a_sum_is_written_in_one_way(name):
    function, factors = SUMS[name]
    (total,) = nodes(graph_of(function, X), "add")
    assert tuple(term.constant for term in total.terms) == pytest.approx(factors)
    assert total.inputs == tuple(term.node for term in total.terms)


def test_a_sum_weighted_by_a_parameter_names_it():
    graph = graph_of(lambda m, x: torch.addcmul(x, m.f(x), m.gain), X, gain=nn.Parameter(torch.ones(WIDTH)))
    (scale,) = [node for node in nodes(graph, "scale") if node.parameter is not None]
    assert graph.parameter_names(scale.parameter) == ("gain",)


@pytest.mark.parametrize(
    ("function", "constant"),
    [
        (lambda m, x: 3 * m.f(x), 3.0),
        (lambda m, x: m.f(x) / 4, 0.25),
        (lambda m, x: -m.f(x), -1.0),
        (lambda m, x: m.f(x) * torch.tensor(0.5), 0.5),
        (lambda m, x: m.f(x) * torch.full((WIDTH,), 2.0), 2.0),
        (lambda m, x: m.f(x) * torch.tensor([1.0, 3.0]).view(1, 2).expand(3, 2).mean(), 2.0),
    ],
)
def test_a_constant_factor_is_read(function, constant):
    (scale,) = nodes(graph_of(function, X), "scale")
    assert scale.constant == pytest.approx(constant)


def test_division_by_nothing_and_by_the_signal_are_no_factor():
    graph = graph_of(lambda m, x: 1 / (m.f(x) / 0.0), X)
    assert {node.constant for node in nodes(graph, "scale")} == {1.0}
    assert len(nodes(graph, "div") + nodes(graph, "reciprocal")) == 1


def test_what_carries_the_signal():
    tokens = torch.tensor([[0, 1], [2, 0]])
    graph = graph_of(
        lambda m, x: m.table(x) * (x > 0)[..., None] + torch.rand(2, 2, WIDTH) * m.f.bias.exp(),
        tokens,
        table=nn.Embedding(3, WIDTH),
    )
    kind = {node.op: node.kind for node in graph.nodes if node.op not in ("parameter", "view")}
    assert (kind["embedding"], kind["gt"], kind["rand"], kind["exp"]) == ("data", "mask", "random", "parameter")
    assert kind["scale"] == kind["shift"] == "data"


def test_ways_through_the_graph():
    graph = graph_of(lambda m, x: m.h(torch.relu(m.f(x)) + m.g(x)), X)
    (total,) = nodes(graph, "add")
    matrices = [node.index for node in graph.nodes if graph.is_learned_matrix(node.index)]
    start = next(node.index for node in graph.nodes if node.op == "input")
    assert graph.between(start, total.index) >= {start, *matrices[:2], total.index}
    assert matrices[2] not in graph.between(start, total.index)
    assert graph.between(total.index, start) == frozenset()
    assert graph.depends(matrices[2], matrices[0])
    assert not graph.depends(matrices[1], matrices[0])
    assert total.index in graph.users[matrices[1]]


def test_a_mean_is_read_through_whole_views_only():
    gain = nn.Parameter(torch.tensor([[1.0, 3.0, 5.0] * 2]))
    graph = graph_of(lambda m, x: x * m.gain.t().t().contiguous() * m.gain[:, :2].mean(), X, gain=gain)
    first, second = (node for node in nodes(graph, "scale"))
    assert graph.mean(first.parameter) == 3.0
    assert graph.mean(second.parameter) == 2.0


def test_the_mean_of_numbers_that_are_not_there_is_unknown():
    with torch.device("meta"):
        graph = graph_of(lambda m, x: x * m.gain, torch.ones(3, WIDTH), gain=nn.Parameter(torch.ones(WIDTH)))
    (scale,) = nodes(graph, "scale")
    assert graph.mean(scale.parameter) is None


def test_views_are_looked_through_where_all_is_kept():
    graph = graph_of(lambda m, x: m.f(x).view(2, -1).t()[:, :1] * 2, X)
    (scale,) = nodes(graph, "scale")
    cut = graph.nodes[scale.carrier]
    assert cut.op == "view"
    assert graph.whole(cut.index) == cut.index
    turned = cut.inputs[0]
    while graph.nodes[turned].arguments.get("view") == "slice":
        turned = graph.nodes[turned].inputs[0]
    assert graph.is_learned_matrix(graph.whole(turned))


def test_factors_that_are_not_finite_count_as_one():
    graph = graph_of(lambda m, x: m.f(x) * math.inf, X)
    assert [node.constant for node in nodes(graph, "scale")] == [1.0]
