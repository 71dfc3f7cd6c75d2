"""Schemes are told by their wiring; DeepNorm's skip scale by the depth it belongs to."""

import pytest
import torch
from torch import nn

from kilolayer.nn import TransformerDecoderLayer, TransformerEncoder, TransformerEncoderLayer, build_deep_mlp
from kilolayer.schemes import SCHEMES, coefficients
from kilolayer.structure import read_structure

READABLE = [scheme.name for scheme in SCHEMES if not scheme.needs_profile]


@pytest.mark.parametrize("name", READABLE)
def test_every_scheme_of_the_registry(name):
    torch.manual_seed(0)
    layer = TransformerEncoderLayer(8, 2, 16, batch_first=True, scheme=name)
    structure = read_structure(TransformerEncoder(layer, 8), (torch.randn(2, 3, 8),))
    assert name in structure.schemes
    assert structure.scheme == structure.schemes[0]


@pytest.mark.parametrize("name", ["plain", "norm-only", "residual", "post-ln", "pre-ln", "deepnorm", "rezero", "keel"])
def test_deep_mlps(name):
    model = build_deep_mlp(in_features=5, num_classes=3, width=8, num_blocks=6, scheme=name)
    structure = read_structure(model, (torch.randn(4, 5),))
    assert structure.scheme == name
    assert len(structure.branches) == (0 if name in ("plain", "norm-only") else 6)


class Scaled(nn.Module):
    """Post-norm layers of two branches with any skip scale."""

    def __init__(self, num_layers, skip_scale):
        super().__init__()
        self.skip_scale = skip_scale
        self.layers = nn.ModuleList(TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(num_layers))

    def forward(self, x):
        for layer in self.layers:
            x = layer.norm1(self.skip_scale * x + layer.self_attn(x))
            x = layer.norm2(self.skip_scale * x + layer.feed_forward(x))
        return x


def fit(num_layers, skip_scale):
    structure = read_structure(Scaled(num_layers, skip_scale), (torch.randn(2, 3, 8),))
    (found,) = structure.depth_fits
    return found


def test_a_skip_scale_of_its_depth():
    found = fit(4, 8**0.25)
    assert found.rules == ("deepnet", "per-stack")
    assert (found.num_branches, found.fitting_branches) == (8, 8)


def test_a_skip_scale_of_another_depth():
    found = fit(4, 24**0.25)
    assert (found.rules, found.fitting_branches) == ((), 24)
    assert found.expected["deepnet"] == pytest.approx(coefficients(encoder_layers=4).encoder.skip_scale)


def test_no_fit_is_asked_of_other_schemes():
    assert read_structure(Scaled(3, 1.0), (torch.randn(2, 3, 8),)).depth_fits == ()


def test_two_stacks():
    from kilolayer.nn import Transformer

    model = Transformer(8, 2, 4, 6, 16, batch_first=True, scheme="deepnorm")
    structure = read_structure(model, (torch.randn(2, 3, 8), torch.randn(2, 4, 8)))
    assert structure.scheme == "deepnorm"
    assert [(one.num_layers, one.num_branches, "deepnet" in one.rules) for one in structure.depth_fits] == [
        (4, 8, True),
        (6, 18, True),
    ]


def test_a_layer_alone_is_a_decoder_layer_too():
    layer = TransformerDecoderLayer(8, 2, 16, batch_first=True)
    structure = read_structure(layer, (torch.randn(2, 3, 8), torch.randn(2, 4, 8)))
    assert (structure.scheme, len(structure.branches)) == ("post-ln", 3)
