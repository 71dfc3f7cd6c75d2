"""Which sums are residual ones: pitfalls of the data flow, each a model."""

import pytest
import torch
from structure_tools import WIDTH, candidates_of, family_of, sums_of
from torch import nn

X = torch.randn(3, WIDTH)
SQUARE = torch.randn(WIDTH, WIDTH)


@pytest.mark.parametrize(
    "function",
    [
        lambda m, x: m.f(x) + m.f.bias,
        lambda m, x: m.table(torch.arange(3)) + m.places(torch.arange(3)),
        lambda m, x: m.f(x) + m.g(m.h(x)),
        lambda m, x: x * SQUARE[:3].cos() + torch.cat([-x[:, 3:], x[:, :3]], 1) * SQUARE[:3].sin(),
        lambda m, x: x + 0.044715 * x**3,
        lambda m, x: m.f(x) @ m.g(x).T + m.h(x) @ x.T,
        lambda m, x: m.f(x).sum(1, keepdim=True) + x,
    ],
    ids=["bias", "positions", "two branches", "rotation", "polynomial", "scores", "broadcast"],
)
def test_what_is_no_residual_sum(function):
    parts = {"table": nn.Embedding(3, WIDTH), "places": nn.Embedding(3, WIDTH)}
    _, family = family_of(function, X, **parts)
    assert [one.kind for one in family.sums] == []


def test_a_term_that_a_branch_adds_to_itself_is_the_branchs():
    def state_space(m, x):
        inner = m.f(x)
        return x + m.g(m.h(inner) + m.skip * inner)

    _, family = family_of(state_space, X, skip=nn.Parameter(torch.ones(WIDTH)))
    assert [one.skip_factor.parameters for one in family.sums] == [()]


KINDS = {
    "identity": (lambda m, x: x + m.f(x), ["identity"]),
    "parallel": (lambda m, x: x + m.f(x) + m.g(x), ["identity", "parallel"]),
    "projection": (lambda m, x: m.f(x) + torch.relu(m.g(x)), ["projection"]),
    "scaled skip": (lambda m, x: 2 * x + m.f(x), ["identity"]),
    "skip through a view": (lambda m, x: x.view(-1).view(3, WIDTH) + m.f(x), ["identity"]),
    "branch without a matrix": (lambda m, x: x + torch.softmax(x, -1), ["identity"]),
    "pool minus itself": (lambda m, x: (x[:, :3] + x[:, 3:]) - x[:, :3], []),
}


@pytest.mark.parametrize("name", KINDS)
def test_kinds(name):
    function, kinds = KINDS[name]
    assert [one.kind for one in sums_of(function, X)[1]] == kinds


def test_factors_of_both_sides():
    signal, (one,) = sums_of(
        lambda m, x: (2 * x).view(3, WIDTH) * m.gain + torch.nn.functional.dropout(m.f(x), 0.2, True) / 4,
        X,
        gain=nn.Parameter(torch.ones(())),
    )
    assert one.skip_factor.constant == 2.0
    assert [signal.graph.parameter_names(node) for node in one.skip_factor.parameters] == [("gain",)]
    assert (one.branch_factor.constant, one.branch_factor.parameters) == (0.25, ())


def test_sums_of_a_norm_are_the_norms():
    _, found = sums_of(lambda m, x: (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-5), X)
    assert found == []


def test_a_gate_of_a_recurrent_cell_is_no_stream():
    def cell(m, x):
        state = torch.zeros_like(x)
        for _ in range(2):
            update = torch.sigmoid(m.f(x) + m.g(state))
            state = (1 - update) * torch.tanh(m.h(x)) + update * state
        return state

    assert family_of(cell, X)[1].sums == []


def test_values_handed_to_the_next_layer_leave_the_stream_alone():
    def handed(m, x):
        first = m.g(m.norm(x))
        x = x + m.f(first)
        second = m.g(m.norm(x)) + 0.5 * first
        return x + m.h(second)

    signal, family = family_of(handed, X)
    assert len(candidates_of(handed, X)[1].sums) >= len(family.sums)
    assert [one.kind for one in family.sums] == ["identity"] * 2
    assert all(signal.nodes[one.node].shape == (3, WIDTH) for one in family.sums)


def test_chains_follow_one_stream_each():
    def two_streams(m, x):
        for _ in range(2):
            x = x + m.f(x)
        y = m.g(x)[:, :3].repeat(1, 2)
        for _ in range(3):
            y = y + m.h(y)
        return y

    _, family = family_of(two_streams, X)
    assert [len(chain) for chain in family.chains] == [2, 3]
    assert [family.chain_number(one.node) for one in family.sums] == [0, 0, 1, 1, 1]
    assert family.chain_of(family.sums[4].node) == family.sums[2:]
    assert family.before[family.sums[1].node] == family.sums[0].node


def test_a_sum_inside_a_branch_is_around_nothing_else():
    def nested(m, x):
        inner = m.f(x)
        inner = inner + m.g(inner)
        return x + m.h(inner)

    _, family = family_of(nested, X)
    inner, outer = family.sums
    assert family.around(inner.node) == [outer]
    assert family.around(outer.node) == []
    assert [len(chain) for chain in family.chains] == [1, 1]


def test_a_long_skip_joins_the_stream_with_an_older_point():
    def shaped_like_a_u(m, x):
        first = x + m.f(x)
        second = first + m.g(first)
        return second + first

    _, family = family_of(shaped_like_a_u, X)
    assert [family.is_long(one.node) for one in family.sums] == [False, False, True]
