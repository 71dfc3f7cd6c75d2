"""What published implementations of DeepNorm get wrong, reproduced as a different function or initialisation."""

import copy
import math

import pytest
import torch
from torch import nn

from kilolayer import nn as kn
from kilolayer.init import InitPlan, InitRow, apply_init, plan_init
from kilolayer.schemes import Depth, coefficients, get_scheme

WIDTH, LAYERS = 16, 6


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture
def layer():
    layer = kn.TransformerEncoderLayer(
        WIDTH, 4, 32, 0.0, batch_first=True, scheme="deepnorm", num_layers=LAYERS, dtype=torch.float64
    )
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return layer


def forward_with(layer, x, *, skip, branch, eps=None):
    """The layer with other factors on skip and branch, and another eps."""
    norms = copy.deepcopy((layer.norm1, layer.norm2))
    for norm in norms:
        norm.eps = norm.eps if eps is None else eps
    x = norms[0](skip * x + branch * layer.self_attn(x))
    return norms[1](skip * x + branch * layer.feed_forward(x))


def test_alpha_on_the_branch_is_another_function(layer):
    """labml multiplies the branch."""
    x, alpha = torch.randn(2, 5, WIDTH, dtype=torch.float64), layer.scales[0].skip_scale
    torch.testing.assert_close(layer(x), forward_with(layer, x, skip=alpha, branch=1.0))
    assert (layer(x) - forward_with(layer, x, skip=1.0, branch=alpha)).abs().max() > 0.1


def test_beta_on_the_skip_is_another_function(layer):
    """A user's 35 + 35 layers fell from BLEU 24 to 0 that way."""
    x, beta = torch.randn(2, 5, WIDTH, dtype=torch.float64), layer.scales[0].init_gain
    assert (layer(x) - forward_with(layer, x, skip=beta, branch=1.0)).abs().max() > 0.1


def test_one_over_alpha_on_the_branch_is_the_same_function(layer):
    """lczero divides the branch instead of multiplying the skip; the norm undoes the difference, up to eps."""
    x, alpha = torch.randn(2, 5, WIDTH, dtype=torch.float64), layer.scales[0].skip_scale
    eps = layer.norm1.eps / alpha**2
    other = forward_with(layer, x, skip=1.0, branch=1 / alpha, eps=eps)
    torch.testing.assert_close(other, layer(x), rtol=1e-12, atol=1e-12)
    unadjusted = (forward_with(layer, x, skip=1.0, branch=1 / alpha) - layer(x)).abs().max()
    assert 1e-9 < unadjusted < 1e-4


def test_its_square_root_gain_is_another_initialisation():
    """lczero's init ends at sqrt(beta)."""
    beta = get_scheme("deepnorm").at(Depth(encoder_layers=LAYERS), 0).init_gain
    stack = kn.TransformerEncoder(kn.TransformerEncoderLayer(256, 4, 256, scheme="deepnorm"), LAYERS)
    measured = stack.layers[0].linear1.weight.std().item() / math.sqrt(1 / 256)
    assert measured == pytest.approx(beta, rel=0.05)
    assert abs(measured - math.sqrt(beta)) > 0.2


def test_torchscales_encoder_gain():
    """torchscale's encoder of an encoder-decoder starts at 1.15/X instead of 0.87/X."""
    ours = coefficients(6, 6).encoder.init_gain
    torchscale = 1.15 / (6**4 * 6) ** (1 / 16)
    assert (round(ours, 4), round(torchscale, 3)) == (0.4970, 0.657)
    plan = plan_init(kn.Transformer(64, 4, 6, 6, 256, scheme="deepnorm"), "deepnorm")
    assert plan.std("encoder.layers.0.linear1.weight") / math.sqrt(2 / 320) == pytest.approx(ours)


def scaled_rows(plan, roles):
    return {row.reason.split(":")[0] for row in plan.rows if "scheme's gain" in row.reason and roles in row.parameter}


def test_query_and_key_are_exempt():
    """The old xformers factory gave them beta too, or missed the value rows of a packed matrix altogether."""
    stack = kn.TransformerEncoder(kn.TransformerEncoderLayer(128, 4, 128, scheme="deepnorm"), LAYERS)
    plan, beta, base = plan_init(stack, "deepnorm"), (8 * LAYERS) ** -0.25, math.sqrt(1 / 128)
    assert scaled_rows(plan, "in_proj_weight") == {"self-attention value"}
    query, key, value = (part.std().item() / base for part in stack.layers[2].self_attn.in_proj_weight.chunk(3))
    assert (query, key, value) == pytest.approx((1.0, 1.0, beta), rel=0.05)
    everything = [
        InitRow(row.parameter, row.fill, beta * base, "query and key too", row.part)
        if row.parameter.endswith("in_proj_weight")
        else row
        for row in plan.rows
    ]
    apply_init(stack, InitPlan(tuple(everything)))
    assert stack.layers[2].self_attn.in_proj_weight[:128].std().item() / base == pytest.approx(beta, rel=0.05)


def test_cloned_layers_start_identical_and_rebuilt_ones_do_not():
    """torch.nn copies the layer it is given; labml's example copies one N times."""
    torchs = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 3, enable_nested_tensor=False)
    ours = kn.TransformerEncoder(kn.TransformerEncoderLayer(8, 2, 16), 3)
    for name, value in torchs.layers[0].named_parameters():
        assert torch.equal(value, torchs.layers[2].get_parameter(name))
    for name, value in ours.layers[0].named_parameters():
        drawn = value.dim() > 1
        assert torch.equal(value, ours.layers[2].get_parameter(name)) != drawn


def test_biases_are_not_scaled():
    """torchscale scales them."""
    stack = kn.TransformerEncoder(kn.TransformerEncoderLayer(8, 2, 16, scheme="deepnorm"), LAYERS)
    biases = [value for name, value in stack.named_parameters() if name.endswith("bias")]
    assert len(biases) == 6 * LAYERS
    assert all(value.eq(0).all() for value in biases)
