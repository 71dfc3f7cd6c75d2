"""Modules that carry a factor stay what they are to everyone else."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

from kilolayer.convert import apply_conversion, plan_conversion
from kilolayer.convert.carriers import fold_on_save, scale_output

X = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))


def scaled_linear():
    linear = nn.Linear(4, 3)
    scale_output(linear, 0.5)
    for name in ("weight", "bias"):
        fold_on_save(linear, name, 0.5)
    return linear


def encoder(**options):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, **options)
    return nn.TransformerEncoder(layer, 2).eval()


def as_deepnorm(model):
    apply_conversion(model, plan_conversion(model, "deepnorm"))
    return model


def test_the_output_is_scaled_and_the_class_is_still_its_own():
    linear = scaled_linear()
    x = torch.randn(2, 4)
    assert isinstance(linear, nn.Linear)
    torch.testing.assert_close(linear(x), 0.5 * nn.functional.linear(x, linear.weight, linear.bias))
    assert repr(linear) == "ScaledLinear(in_features=4, out_features=3, bias=True, branch_scale=0.5)"


def test_a_factor_of_1_leaves_nothing_behind():
    linear = scaled_linear()
    scale_output(linear, 1.0)
    for name in ("weight", "bias"):
        fold_on_save(linear, name, 1.0)
    assert type(linear) is nn.Linear
    assert set(vars(linear)) == set(vars(nn.Linear(4, 3)))
    scale_output(linear, 1.0)
    assert type(linear) is nn.Linear


def test_a_state_dict_is_what_a_plain_class_needs_for_the_same_function():
    linear, plain, again = scaled_linear(), nn.Linear(4, 3), scaled_linear()
    x = torch.randn(2, 4)
    plain.load_state_dict(linear.state_dict())
    torch.testing.assert_close(plain(x), linear(x))
    state = linear.state_dict()
    before = {name: value.clone() for name, value in state.items()}
    again.load_state_dict(state)
    torch.testing.assert_close(again(x), linear(x))
    torch.testing.assert_close(again.weight, linear.weight)
    assert all(torch.equal(value, before[name]) for name, value in state.items())


def test_a_state_dict_of_live_parameters_has_their_gradients():
    linear = scaled_linear()
    linear.state_dict(keep_vars=True)["weight"].sum().backward()
    torch.testing.assert_close(linear.weight.grad, torch.full((3, 4), 0.5))


@pytest.mark.parametrize("way", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))], ids=["copy", "pickle"])
def test_copies_and_pickles_carry_on(way):
    model = as_deepnorm(encoder())
    again = way(model)
    assert torch.equal(again(X), model(X))
    apply_conversion(again, plan_conversion(again, "post-ln"))
    assert type(again.layers[0].linear2) is nn.Linear
    assert type(model.layers[0].linear2) is not nn.Linear


def test_a_whole_model_saved_by_torch_is_loaded_again():
    model = as_deepnorm(encoder())
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(X), model(X))


def test_only_the_first_output_of_several_is_scaled():
    attention = nn.MultiheadAttention(16, 2, batch_first=True).eval()
    out, weights = attention(X, X, X)
    scale_output(attention, 0.25)
    scaled, same = attention(X, X, X)
    torch.testing.assert_close(scaled, 0.25 * out)
    assert torch.equal(same, weights)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
@pytest.mark.parametrize("masked", [False, True])
def test_torchs_fused_layers_do_not_pass_the_scale_by(masked):
    model = encoder()
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2]) if masked else None
    with torch.no_grad():
        wanted = model(X, src_key_padding_mask=padding)
        as_deepnorm(model)
        found = model(X, src_key_padding_mask=padding)
    there = slice(None) if padding is None else ~padding
    torch.testing.assert_close(found[there], wanted[there], atol=1e-5, rtol=0)
    assert model.layers[0].activation_relu_or_gelu == 0
    assert not model.use_nested_tensor


def test_and_are_open_again_behind():
    model, plain = as_deepnorm(encoder()), encoder()
    apply_conversion(model, plan_conversion(model, "post-ln"))
    assert model.layers[0].activation_relu_or_gelu == plain.layers[0].activation_relu_or_gelu == 1
    assert model.use_nested_tensor == plain.use_nested_tensor
    assert set(vars(model.layers[0])) == set(vars(plain.layers[0]))


def test_the_gradients_are_those_of_the_skip_scale_itself():
    """LN(alpha x + f) and LN(x + f / alpha) with eps / alpha^2, for the same parameters."""
    torch.manual_seed(0)
    alpha, norm, linear = 3.0, nn.LayerNorm(16, eps=1e-3), nn.Linear(16, 16)
    carried, its_norm = copy.deepcopy(linear), nn.LayerNorm(16, eps=1e-3 / 9)
    scale_output(carried, 1 / alpha)
    weights = torch.randn(16)
    (norm(alpha * X + linear(X)) * weights).sum().backward()
    (its_norm(X + carried(X)) * weights).sum().backward()
    torch.testing.assert_close(carried.weight.grad, linear.weight.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(carried.bias.grad, linear.bias.grad, rtol=1e-4, atol=1e-5)


def test_a_compiled_model_carries_it_too():
    model = as_deepnorm(encoder())
    compiled = torch.compile(model, backend="eager")
    torch.testing.assert_close(compiled(X), model(X))
