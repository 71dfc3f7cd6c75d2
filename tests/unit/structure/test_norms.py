"""Norms however they are written, and things that only look like one."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kilolayer.structure.normal_form import build_graph
from kilolayer.structure.norms import find_norms
from kilolayer.structure.read import record_forward


class Written(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.gain, self.bias = nn.Parameter(torch.ones(6)), nn.Parameter(torch.zeros(6))

    def forward(self, x):
        return self.function(self, x).sin()


def norms_of(function, *shape):
    model = function if isinstance(function, nn.Module) else Written(function)
    graph = build_graph(record_forward(model, (torch.randn(*(shape or (4, 6))),)))
    return graph, find_norms(graph)


def centered(x):
    return x - x.mean(-1, keepdim=True)


NORMS = {
    "rsqrt": ("rms", lambda m, x: m.gain * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))),
    "one plus gain": ("rms", lambda m, x: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * (1 + m.gain)),
    "power": ("rms", lambda m, x: x * (x.square().mean(-1, keepdim=True) + 1e-6) ** -0.5 * m.gain),
    "square root": ("rms", lambda m, x: x / torch.sqrt(x.square().mean(-1, keepdim=True) + 1e-6)),
    "norm over root width": ("rms", lambda m, x: x / (x.norm(dim=-1, keepdim=True) * 6**-0.5 + 1e-6) * m.gain),
    "normalize": ("rms", lambda m, x: F.normalize(x, dim=-1) * 6**0.5 * m.gain),
    "in double": (
        "rms",
        lambda m, x: (x.double() * torch.rsqrt(x.double().square().mean(-1, keepdim=True))).float() * m.gain,
    ),
    "layer": (
        "layer",
        lambda m, x: centered(x) / torch.sqrt(x.var(-1, unbiased=False, keepdim=True) + 1e-5) * m.gain + m.bias,
    ),
    "layer, own variance": (
        "layer",
        lambda m, x: centered(x) * torch.rsqrt(centered(x).pow(2).mean(-1, keepdim=True) + 1e-5),
    ),
    "layer, std": (
        "layer",
        lambda m, x: m.gain * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6) + m.bias,
    ),
    "batch": (
        "batch",
        lambda m, x: (x - x.mean(0, keepdim=True)) / (x.var(0, keepdim=True) + 1e-5).sqrt() * m.gain + m.bias,
    ),
    "functional": ("layer", lambda m, x: F.layer_norm(x, (6,)) * m.gain + m.bias),
}


@pytest.mark.parametrize("name", NORMS)
def test_written_out(name):
    kind, function = NORMS[name]
    graph, norms = norms_of(function)
    assert [norm.kind for norm in norms] == [kind]
    assert graph.nodes[graph.whole(norms[0].input)].op == "input"
    # Gain and bias are the norm's own: what reads it is the last thing the model does.
    assert [graph.nodes[user].op for user in graph.users[norms[0].output]] == ["sin"]


@pytest.mark.parametrize(
    ("module", "shape", "kind"),
    [
        (nn.LayerNorm(6), (4, 6), "layer"),
        (nn.RMSNorm(6), (4, 6), "rms"),
        (nn.BatchNorm1d(6), (4, 6), "batch"),
        (nn.GroupNorm(2, 6), (4, 6, 3), "group"),
        (nn.InstanceNorm1d(6), (4, 6, 3), "instance"),
        (nn.InstanceNorm2d(6, affine=True), (4, 6, 3, 3), "instance"),
    ],
)
def test_modules(module, shape, kind):
    assert [norm.kind for norm in norms_of(module, *shape)[1]] == [kind]


NOT_NORMS = {
    "softmax by hand": lambda m, x: x.exp() / x.exp().sum(-1, keepdim=True),
    "squeeze and excite": lambda m, x: x * torch.sigmoid(x.mean(-1, keepdim=True)),
    "shares of a sum": lambda m, x: x / x.sum(-1, keepdim=True),
    "global response": lambda m, x: (
        x * (x.norm(dim=0, keepdim=True) / x.norm(dim=0, keepdim=True).mean(-1, keepdim=True))
    ),
    "centering": lambda m, x: centered(x),
    "square too many": lambda m, x: x / x.square().mean(-1, keepdim=True),
    "root of a root": lambda m, x: x / x.square().mean(-1, keepdim=True).sqrt().sqrt(),
    "another's statistic": lambda m, x: x.sin() / x.square().mean(-1, keepdim=True).sqrt(),
    "gain alone": lambda m, x: x * m.gain + m.bias,
}


@pytest.mark.parametrize("name", NOT_NORMS)
def test_no_norms(name):
    assert norms_of(NOT_NORMS[name])[1] == []


def test_a_second_gain_is_not_the_norms_own():
    graph, norms = norms_of(lambda m, x: m.bias * F.layer_norm(x, (6,), m.gain))
    (reader,) = graph.users[norms[0].output]
    assert graph.nodes[reader].op == "scale"
    assert graph.parameter_names(graph.nodes[reader].parameter) == ("bias",)


def test_a_factor_that_the_statistic_sees_is_not_the_norms_own():
    def function(model, x):
        scaled = model.gain * x
        return scaled / scaled.square().mean(-1, keepdim=True).sqrt()

    graph, (norm,) = norms_of(function)
    assert graph.nodes[norm.input].op == "scale"
