import pytest
import torch
from torch import nn

from kilolayer.nn import TransformerEncoder, TransformerEncoderLayer
from kilolayer.structure import read_structure
from kilolayer.structure.drawing import render_structure


def encoder(scheme, num_layers=4):
    torch.manual_seed(0)
    return TransformerEncoder(TransformerEncoderLayer(8, 2, 16, batch_first=True, scheme=scheme), num_layers)


def render(model, *inputs):
    return render_structure(read_structure(model, inputs or (torch.randn(2, 3, 8),)))


def test_deepnorm():
    assert render(encoder("deepnorm")).splitlines() == [
        "8 residual sums in 1 chain, wired as deepnorm",
        "",
        "Chain 1: layers.0 to layers.3, 8 sums, no norm at its end",
        "",
        "  layers.0 to layers.3, 4 alike",
        "    x ─┬──────── × 1.682 ────────(+)─ LayerNorm ─>",
        "       └─ self_attn (attention) ──┘",
        "    x ─┬──────── × 1.682 ────────(+)─ LayerNorm ─>",
        "       └──── linear2 (relu) ──────┘",
        "",
        "Chain 1: skip scale 1.682 is the one of its depth under deepnet and per-stack.",
    ]


@pytest.mark.parametrize("scheme", ["post-ln", "sandwich-ln", "sub-ln", "layerscale", "keel", "b2t", "mix-ln"])
def test_nothing_is_wider_than_a_terminal(scheme):
    lines = render(encoder(scheme)).splitlines()
    assert max(len(line) for line in lines) <= 80
    assert any("(+)" in line for line in lines)


def test_layers_that_differ_are_drawn_apart():
    text = render(encoder("mix-ln"))
    assert "  layers.0\n" in text
    assert "  layers.1 to layers.3, 3 alike" in text


def test_no_sum_at_all():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    assert render(model, torch.randn(2, 3)) == "no residual sum; wired as plain"


def test_a_recurrent_layer():
    assert "The model runs 5 times on its own result." in render(nn.LSTM(3, 4), torch.randn(5, 2, 3))


def test_a_factor_in_a_list_is_drawn_with_the_name_of_the_list():
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.gate = nn.Linear(8, 8), nn.Parameter(torch.tensor(0.5))
            self.gates = nn.ParameterList([nn.Parameter(torch.tensor(0.25))])

        def forward(self, x):
            x = x + self.gate * self.linear(x)
            return x + self.gates[0] * self.linear(x)

    drawn = render(Gated())
    assert "× gate (now 0.5)" in drawn
    assert "× gates.0 (now 0.25)" in drawn
