"""Small models for the tests of the reader's parts."""

from torch import nn

from kilolayer.structure.chains import link
from kilolayer.structure.normal_form import build_graph
from kilolayer.structure.norms import find_norms
from kilolayer.structure.read import record_forward
from kilolayer.structure.rejects import keep_residuals
from kilolayer.structure.signal import Signal
from kilolayer.structure.sums import find_sums

WIDTH = 6


class Custom(nn.Module):
    """A model whose forward pass is a function of itself and its inputs; ``f``, ``g``, ``h`` are matrices."""

    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name in "fgh":
            self.add_module(name, nn.Linear(WIDTH, WIDTH))
        for name, part in ({"norm": nn.LayerNorm(WIDTH), "other_norm": nn.LayerNorm(WIDTH)} | parts).items():
            setattr(self, name, part)

    def forward(self, *inputs):
        return self.function(self, *inputs)


def graph_of(function, *inputs, **parts):
    return build_graph(record_forward(Custom(function, **parts), inputs))


def signal_of(function, *inputs, **parts):
    graph = graph_of(function, *inputs, **parts)
    return Signal(graph, find_norms(graph))


def sums_of(function, *inputs, **parts):
    signal = signal_of(function, *inputs, **parts)
    return signal, find_sums(signal)


def family_of(function, *inputs, **parts):
    signal, sums = sums_of(function, *inputs, **parts)
    return signal, keep_residuals(signal, sums)


def candidates_of(function, *inputs, **parts):
    signal, sums = sums_of(function, *inputs, **parts)
    return signal, link(signal, sums)
