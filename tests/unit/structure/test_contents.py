import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kilolayer.structure import read_structure

WIDTH = 8


class Inside(nn.Module):
    """One branch: a matrix, what is asked about, a matrix."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + self.last(self.function(self.first(x)))


def branch_of(function):
    (branch,) = read_structure(Inside(function), (torch.randn(2, 3, WIDTH),)).branches
    return branch


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (F.relu, ("relu",)),
        (lambda x: x.clamp(min=0), ("relu",)),
        (lambda x: F.relu(x).square(), ("relu",)),
        (F.gelu, ("gelu",)),
        (lambda x: F.gelu(x, approximate="tanh"), ("gelu",)),
        (lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))), ("gelu",)),
        (lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2))), ("gelu",)),
        (F.silu, ("silu",)),
        (lambda x: x * torch.sigmoid(x), ("silu",)),
        (lambda x: x * torch.sigmoid(1.702 * x), ("silu",)),
        (torch.tanh, ("tanh",)),
        (lambda x: torch.sigmoid(x.flip(-1)) * torch.sin(x), ("sigmoid", "sin")),
        (lambda x: x.clamp(min=-1), ()),
        (lambda x: F.elu(F.leaky_relu(x)), ("leaky_relu", "elu")),
        (lambda x: F.layer_norm(x, (WIDTH,)), ()),
    ],
)
def test_activations(function, names):
    assert branch_of(function).activations == names


def by_hand(scale):
    return lambda x: (scale * x @ x.transpose(1, 2)).softmax(-1) @ x


@pytest.mark.parametrize(
    ("function", "attention"),
    [
        (lambda x: F.scaled_dot_product_attention(x, x, x), "scaled"),
        (lambda x: F.scaled_dot_product_attention(x, x, x, scale=1.0), "unscaled"),
        (by_hand(WIDTH**-0.5), "scaled"),
        (by_hand(1), "unscaled"),
        (lambda x: (x @ x.transpose(1, 2) / math.sqrt(WIDTH)).softmax(-1) @ x, "scaled"),
        (lambda x: F.softmax(x, -1), None),
        (lambda x: (F.normalize(x, dim=-1) @ F.normalize(x, dim=-1).transpose(1, 2)).softmax(-1) @ x, "scaled"),
        (lambda x: torch.baddbmm(torch.zeros(2, 3, 3), x, x.transpose(1, 2), alpha=0.3).softmax(-1) @ x, "scaled"),
    ],
)
def test_attention(function, attention):
    assert branch_of(function).attention == attention
