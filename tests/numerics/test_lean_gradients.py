"""Hand-written backward passes of the memory-lean matrices, and what they save."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import gradcheck, gradgradcheck

from kilolayer import nn as kn
from kilolayer.nn.lean import ActivationLinear, LayerNormLinear, RMSNormLinear, norm_linear
from kilolayer.schemes import SCHEMES as REGISTERED

SCHEMES = [
    "plain", "norm-only", "residual", "post-ln", "pre-ln", "deepnorm", "sandwich-ln", "end-ln", "sub-ln", "rezero",
    "skipinit", "layerscale", "fixup", "keel", "layernorm-scaling", "mix-ln", "b2t",
]  # fmt: skip


def leaf(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.mark.parametrize("with_bias", [True, False])
def test_layer_norm_linear(with_bias):
    bias = leaf(3) if with_bias else None
    norm_bias = leaf(4) if with_bias else None
    inputs = (leaf(2, 3, 4), leaf(4), norm_bias, 1e-5, leaf(3, 4), bias)
    assert gradcheck(LayerNormLinear.apply, inputs)
    assert gradgradcheck(LayerNormLinear.apply, inputs)


@pytest.mark.parametrize("with_bias", [True, False])
def test_rms_norm_linear(with_bias):
    inputs = (leaf(2, 3, 4), leaf(4), None, 1e-5, leaf(3, 4), leaf(3) if with_bias else None)
    assert gradcheck(RMSNormLinear.apply, inputs)
    assert gradgradcheck(RMSNormLinear.apply, inputs)


@pytest.mark.parametrize("activation", ["gelu", "silu", "swiglu"])
@pytest.mark.parametrize("with_bias", [True, False])
def test_activation_linear(activation, with_bias):
    hidden = 8 if activation == "swiglu" else 4
    inputs = (leaf(2, 3, hidden), activation, leaf(3, 4), leaf(3) if with_bias else None)
    assert gradcheck(ActivationLinear.apply, inputs)
    assert gradgradcheck(ActivationLinear.apply, inputs)


@pytest.mark.parametrize("function", [LayerNormLinear, RMSNormLinear])
def test_each_output_alone_has_its_gradient(function):
    x, gain, weight = leaf(5, 4), leaf(4), leaf(3, 4)
    for output in (0, 1):
        assert gradcheck(lambda *args, o=output: function.apply(*args)[o], (x, gain, None, 1e-5, weight, None))


@pytest.mark.parametrize("frozen", ["x", "gain", "weight", "all but x", "all but weight"])
def test_frozen_inputs_get_no_gradient(frozen):
    inputs = {"x": leaf(5, 4), "gain": leaf(4), "weight": leaf(3, 4)}
    kept = frozen.removeprefix("all but ")
    for name, tensor in inputs.items():
        tensor.requires_grad_((name == kept) if frozen.startswith("all") else (name != kept))
    for function in (LayerNormLinear, RMSNormLinear):
        out = function.apply(inputs["x"], inputs["gain"], None, 1e-5, inputs["weight"], None)[1]
        out.square().sum().backward()
        assert all((tensor.grad is not None) == tensor.requires_grad for tensor in inputs.values())
        for tensor in inputs.values():
            tensor.grad = None


@pytest.mark.parametrize("kind", [nn.LayerNorm, nn.RMSNorm])
def test_norm_linear_is_the_norm_and_the_matrix(kind):
    x, norm, linear = leaf(2, 5, 8), kind(8, eps=1e-3, dtype=torch.float64), nn.Linear(8, 3).double()
    nn.init.normal_(norm.weight)
    y, z = norm_linear(x, norm, linear.weight, linear.bias, norm_scale=0.7)
    torch.testing.assert_close(y, 0.7 * norm(x), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(z, linear(0.7 * norm(x)), rtol=1e-12, atol=1e-12)


def test_an_rms_norm_without_eps_uses_the_precision():
    x, norm = 1e-9 * leaf(4, 8), nn.RMSNorm(8, dtype=torch.float64)
    weight = leaf(3, 8)
    torch.testing.assert_close(norm_linear(x, norm, weight, None)[1], F.linear(norm(x), weight))


def test_per_sample_gradients():
    x, gain, weight = leaf(3, 5, 4), leaf(4), leaf(2, 4)

    def loss(weight, x):
        h = LayerNormLinear.apply(x, gain, None, 1e-5, weight, None)[1]
        return ActivationLinear.apply(h, "gelu", torch.eye(2, dtype=torch.float64), None).square().sum()

    batched = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weight, x)
    one_by_one = torch.stack([torch.autograd.grad(loss(weight, row), weight)[0] for row in x])
    torch.testing.assert_close(batched, one_by_one)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("activation", ["relu", "gelu", "swiglu"])
@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_the_lean_way_equals_the_plain_way(scheme, activation, norm):
    stacks = []
    for recompute in (False, True):
        options = {"activation": activation, "norm": norm, "recompute_activations": recompute}
        config = kn.TransformerConfig(
            vocab_size=11, width=8, num_heads=2, encoder_layers=4, decoder_layers=4, scheme=scheme, tied_head=False,
            qk_norm=True, num_kv_heads=1, **options,
        )  # fmt: skip
        stacks.append(kn.Seq2Seq(config).double())
    plain, lean = stacks
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    lean.load_state_dict(plain.state_dict())
    source, target = torch.randint(11, (2, 6)), torch.randint(11, (2, 5))
    outputs = [model(source, target) for model in stacks]
    for out in outputs:
        out.square().mean().backward()
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-10, atol=1e-12)
    for (name, ours), reference in zip(lean.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, reference.grad, rtol=1e-8, atol=1e-12, msg=name)


def test_float32_gradients_within_a_millionth():
    torch.manual_seed(3)
    template = kn.TransformerEncoderLayer(32, 4, 128, 0.0, "gelu", scheme="deepnorm")
    lean = kn.TransformerEncoder(template, 4)
    plain = kn.TransformerEncoder(
        kn.TransformerEncoderLayer(32, 4, 128, 0.0, "gelu", scheme="deepnorm", recompute_activations=False), 4
    )
    plain.load_state_dict(lean.state_dict())
    x = torch.randn(6, 3, 32)
    for stack in (lean, plain):
        stack(x).mul(torch.linspace(-1, 1, 32)).mean().backward()
    for ours, reference in zip(lean.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, reference.grad, rtol=1e-6, atol=1e-6)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_forward_mode_derivatives():
    layer = kn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", batch_first=True, dtype=torch.float64)
    x, direction = leaf(2, 3, 8), torch.randn(2, 3, 8, dtype=torch.float64)
    with torch.no_grad():
        step = 1e-6
        expected = (layer(x + step * direction) - layer(x - step * direction)) / (2 * step)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        _, measured = torch.func.jvp(layer, (x,), (direction,))
    torch.testing.assert_close(measured, expected, rtol=1e-6, atol=1e-7)


def kept_bytes(module, x):
    """Bytes of every tensor a forward pass keeps for the backward, parameters apart, each storage once."""
    parameters = {p.untyped_storage().data_ptr() for p in module.parameters()}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        module(x)
    return sum(kept.values())


@pytest.mark.parametrize(("activation", "ratio"), [("gelu", 0.66), ("relu", 0.85)])
@pytest.mark.parametrize("scheme", ["post-ln", "pre-ln", "deepnorm"])
@pytest.mark.parametrize("batch_first", [True, False])
def test_lean_layers_keep_less_than_torchs(activation, ratio, scheme, batch_first):
    arguments = (64, 4, 256, 0.0, activation, 1e-5, batch_first)
    reference = nn.TransformerEncoder(nn.TransformerEncoderLayer(*arguments), 6, enable_nested_tensor=False)
    ours = kn.TransformerEncoder(kn.TransformerEncoderLayer(*arguments, scheme=scheme), 6)
    x = torch.randn(4, 32, 64)
    assert kept_bytes(ours, x) <= ratio * kept_bytes(reference, x)


def test_checkpointed_layers_keep_a_tenth():
    arguments = (16, 2, 64, 0.0, "relu", 1e-5, True)
    reference = nn.TransformerEncoder(nn.TransformerEncoderLayer(*arguments), 100, enable_nested_tensor=False)
    template = kn.TransformerEncoderLayer(*arguments, scheme="deepnorm")
    ours = kn.TransformerEncoder(template, 100, checkpoint_every="auto")
    one_segment = kn.TransformerEncoder(template, 3)
    x = torch.randn(2, 8, 16)
    # What stays while the backward computes one segment again, beside the inputs of all segments.
    assert kept_bytes(ours, x) + kept_bytes(one_segment, x) <= 0.1 * kept_bytes(reference, x)


def test_every_scheme_is_covered():
    alike = {"residual-scaled", "pre-ln-scaled", "t-fixup"}
    needs_profile = {scheme.name for scheme in REGISTERED if scheme.needs_profile}
    assert {scheme.name for scheme in REGISTERED} == set(SCHEMES) | alike | needs_profile
