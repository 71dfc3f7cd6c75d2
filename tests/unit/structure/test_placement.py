"""Where norms stand around a sum, what ends a chain, and weights that run again."""

import pytest
import torch
from structure_tools import WIDTH, Custom, family_of, graph_of, signal_of
from torch import nn

from kilolayer.structure import read_structure
from kilolayer.structure.depths import layer_of
from kilolayer.structure.placement import GUESSED, final_norm, place_norms
from kilolayer.structure.recurrences import find_recurrences

X = torch.randn(3, WIDTH)


def repeat(step, times=3):
    def run(m, x):
        for _ in range(times):
            x = step(m, x)
        return x

    return run


PLACES = {
    "pre": lambda m, x: x + m.f(m.norm(x)),
    "post": lambda m, x: m.norm(x + m.f(x)),
    "end": lambda m, x: x + m.norm(m.f(x)),
    "pre+end": lambda m, x: x + m.other_norm(m.f(m.norm(x))),
    "pre+inner": lambda m, x: x + m.g(m.other_norm(torch.relu(m.f(m.norm(x))))),
    "pre+post": lambda m, x: m.other_norm(x + m.f(m.norm(x))),
    "none": lambda m, x: x + m.g(torch.relu(m.f(x))),
}


@pytest.mark.parametrize("place", PLACES)
def test_every_slot(place):
    signal, family = family_of(repeat(PLACES[place]), X)
    assert [found.name for found in place_norms(signal, family).values()] == [place] * 3


@pytest.mark.parametrize(
    ("function", "names", "final"),
    [
        (lambda m, x: m.norm(repeat(PLACES["pre"])(m, x)), ["pre"] * 3, "layer"),
        (lambda m, x: m.other_norm(repeat(PLACES["post"])(m, x)), ["post"] * 3, "layer"),
        (repeat(PLACES["post"]), ["post"] * 3, None),
        (lambda m, x: m.norm(repeat(PLACES["none"])(m, x).mean(0)), ["none"] * 3, "layer"),
    ],
    ids=["pre-norm with a final norm", "post-norm with one", "post-norm without", "behind a pool"],
)
def test_the_norm_behind_the_last_sum_goes_by_the_sums_before(function, names, final):
    signal, family = family_of(function, X)
    placements = place_norms(signal, family)
    assert [found.name for found in placements.values()] == names
    norm = final_norm(signal, family, placements, family.chains[0])
    assert (None if norm is None else norm.kind) == final


def test_a_lone_sum_with_a_norm_behind_it_is_a_guess():
    signal, family = family_of(PLACES["post"], X)
    (found,) = place_norms(signal, family).values()
    assert (found.name, found.confidence) == ("post", GUESSED)


def test_a_factor_of_the_whole_sum_is_one_of_both_terms():
    branches = read_structure(Custom(repeat(lambda m, x: (x + m.f(m.norm(x))) / 2**0.5)), (X,)).branches
    factors = [(branch.skip_scale, branch.branch_scale) for branch in branches]
    assert factors == [(pytest.approx(2**-0.5), pytest.approx(2**-0.5))] * 3


def test_walks_along_the_signal():
    signal = signal_of(lambda m, x: m.g((3 * m.norm(x).t() * m.gain).t()), X, gain=nn.Parameter(torch.ones(())))
    matrix = next(node for node in signal.nodes if signal.graph.is_learned_matrix(node.index))
    *_, (end, factor) = signal.back(next(iter(signal.graph.data_inputs(matrix.index))))
    assert end == signal.norms[0].output
    assert factor.constant == 3.0
    assert [signal.graph.parameter_names(one) for one in factor.parameters] == [("gain",)]
    source = signal.norms[0].input
    assert signal.norms_reading(signal.ahead(source)) == signal.norms
    assert signal.norms_reading([matrix.index]) is None
    assert source in list(signal.stream_back(end))


def test_weights_that_run_on_their_own_result_recur_and_parallel_ones_do_not():
    def recurrent(m, x):
        for _ in range(4):
            x = torch.tanh(m.f(x))
        return x

    assert [(one.path, one.times) for one in find_recurrences(graph_of(recurrent, X))] == [("f", 4)]
    assert find_recurrences(graph_of(lambda m, x: m.f(x) + m.f(2 * x), X)) == ()


def test_a_layer_is_the_module_with_a_number():
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.mlp = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            x = x + self.attention(x)
            return x + self.mlp(x)

    branches = read_structure(nn.Sequential(Layer(), Layer()), (X,)).branches
    assert [layer_of(branch)[0] for branch in branches] == ["0", "0", "1", "1"]
    assert [branch.branch_path for branch in branches] == ["0.attention", "0.mlp", "1.attention", "1.mlp"]


@pytest.mark.parametrize("place", ["pre", "post", "pre+end"])
def test_statistics_that_hooks_take_change_nothing(place):
    model = Custom(repeat(PLACES[place]))
    seen = []
    for part in model.modules():
        part.register_forward_hook(lambda module, args, output: seen.append((output.norm(), args[0].abs().mean())))
    branches = read_structure(model, (X,)).branches
    assert seen
    assert [branch.norm_placement for branch in branches] == [place] * 3
