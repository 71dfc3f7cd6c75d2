"""What people do to a model: compile, autocast, cast, build on meta, copy, save."""

import copy
import dataclasses
import shutil

import pytest
import safetensors.torch
import torch
from torch import nn

from kilolayer import nn as kn

CONFIG = kn.TransformerConfig(
    vocab_size=19, width=16, num_heads=4, encoder_layers=2, decoder_layers=2, activation="gelu", norm="rms",
    positions="rotary",
)  # fmt: skip
BUILDERS = {
    "encoder": lambda: kn.TransformerEncoder(kn.TransformerEncoderLayer(16, 4, 32, 0.0, "gelu", scheme="deepnorm"), 2),
    "transformer": lambda: kn.Transformer(16, 4, 2, 2, 32, 0.0, scheme="pre-ln"),
    "causal-lm": lambda: kn.CausalLM(
        kn.TransformerConfig(vocab_size=19, width=16, num_heads=4, decoder_layers=2, activation="swiglu")
    ),
    "seq2seq": lambda: kn.Seq2Seq(CONFIG),
}


def inputs_of(name, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(19, (2, 5), generator=generator)
    stream = torch.randn(5, 2, 16, generator=generator, dtype=dtype)
    return {"encoder": (stream,), "transformer": (stream, stream), "causal-lm": (tokens,), "seq2seq": (tokens, tokens)}[
        name
    ]


def step(model, inputs):
    model.zero_grad()
    out = model(*inputs)
    (out * torch.linspace(-1, 1, out.shape[-1], dtype=out.dtype)).mean().backward()
    return out.detach(), [parameter.grad.clone() for parameter in model.parameters()]


needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None,
    reason="torch.compile needs a C++ compiler on this machine, and none is installed",
)


@pytest.fixture
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@needs_compiler
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")
def test_compiled_whole(fresh_compiler):
    torch.manual_seed(0)
    name = "causal-lm"
    model = BUILDERS[name]()
    expected, gradients = step(model, inputs_of(name))
    out, compiled_gradients = step(torch.compile(model, fullgraph=True), inputs_of(name))
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    for ours, reference in zip(compiled_gradients, gradients, strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", BUILDERS)
def test_one_graph_without_breaks(name, fresh_compiler):
    torch.manual_seed(0)
    model = BUILDERS[name]()
    expected, gradients = step(model, inputs_of(name))
    out, traced_gradients = step(torch.compile(model, backend="aot_eager", fullgraph=True), inputs_of(name))
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    for ours, reference in zip(traced_gradients, gradients, strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", ["encoder", "causal-lm"])
def test_compiled_block_by_block(name, fresh_compiler):
    torch.manual_seed(0)
    model = BUILDERS[name]()
    expected, gradients = step(model, inputs_of(name))
    layers = model.layers if name == "encoder" else model.decoder.layers
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    for layer in layers:
        layer.compile(backend=counter, fullgraph=True)
    out, compiled_gradients = step(model, inputs_of(name))
    assert counter.frame_count >= 1
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    for ours, reference in zip(compiled_gradients, gradients, strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize("recompute", [True, False])
def test_autocast_bfloat16(name, recompute):
    torch.manual_seed(0)
    model = BUILDERS[name]()
    for module in model.modules():
        if hasattr(module, "self_attn"):
            module.options = dataclasses.replace(module.options, recompute_activations=recompute)
    expected, gradients = step(model, inputs_of(name))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(*inputs_of(name))
    assert out.dtype == (torch.bfloat16 if name in ("causal-lm", "seq2seq") else torch.float32)
    model.zero_grad()
    (out.float() * torch.linspace(-1, 1, out.shape[-1])).mean().backward()
    assert ((out.float() - expected).norm() / expected.norm()) < 0.03
    ours = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    reference = torch.cat([gradient.flatten() for gradient in gradients])
    assert all(parameter.grad.dtype == torch.float32 for parameter in model.parameters())
    assert ((ours - reference).norm() / reference.norm()) < 0.05


@pytest.mark.parametrize("name", BUILDERS)
def test_float64_agrees_with_float32(name):
    torch.manual_seed(0)
    model = BUILDERS[name]()
    expected, gradients = step(model, inputs_of(name))
    wide = copy.deepcopy(model).double()
    out, wide_gradients = step(wide, tuple(x.double() if x.is_floating_point() else x for x in inputs_of(name)))
    assert out.dtype == torch.float64
    torch.testing.assert_close(out.float(), expected, rtol=1e-4, atol=1e-5)
    for ours, reference in zip(wide_gradients, gradients, strict=True):
        assert ours.dtype == torch.float64
        torch.testing.assert_close(ours.float(), reference, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", BUILDERS)
def test_pure_bfloat16_runs(name):
    torch.manual_seed(0)
    model = BUILDERS[name]().bfloat16()
    out, gradients = step(model, tuple(x.bfloat16() if x.is_floating_point() else x for x in inputs_of(name)))
    assert out.dtype == torch.bfloat16
    assert all(torch.isfinite(gradient).all() for gradient in gradients)


@pytest.mark.parametrize("name", BUILDERS)
def test_built_on_meta(name):
    real = BUILDERS[name]()
    with torch.device("meta"):
        model = BUILDERS[name]()
    assert all(parameter.is_meta for parameter in model.parameters())
    assert {k: v.shape for k, v in model.state_dict().items()} == {k: v.shape for k, v in real.state_dict().items()}
    model.load_state_dict(real.state_dict(), assign=True)
    torch.testing.assert_close(model(*inputs_of(name)), real(*inputs_of(name)))


def test_layers_take_a_device():
    layer = kn.TransformerEncoderLayer(16, 4, 32, device="meta", scheme="deepnorm")
    stack = kn.TransformerEncoder(layer, 3)
    assert all(parameter.is_meta for parameter in stack.parameters())


@pytest.mark.parametrize("name", BUILDERS)
def test_copied(name):
    torch.manual_seed(0)
    model = BUILDERS[name]()
    twin = copy.deepcopy(model)
    expected, gradients = step(model, inputs_of(name))
    out, twin_gradients = step(twin, inputs_of(name))
    torch.testing.assert_close(out, expected, rtol=0, atol=0)
    assert all(torch.equal(a, b) for a, b in zip(gradients, twin_gradients, strict=True))
    with torch.no_grad():
        next(twin.parameters()).add_(1.0)
    assert torch.equal(model(*inputs_of(name)), expected)


@pytest.mark.parametrize("name", BUILDERS)
def test_saved_as_safetensors(name, tmp_path):
    torch.manual_seed(0)
    model = BUILDERS[name]()
    safetensors.torch.save_file(model.state_dict(), tmp_path / "model.safetensors")
    torch.manual_seed(1)
    other = BUILDERS[name]()
    assert not torch.equal(other(*inputs_of(name)), model(*inputs_of(name)))
    other.load_state_dict(safetensors.torch.load_file(tmp_path / "model.safetensors"))
    assert torch.equal(other(*inputs_of(name)), model(*inputs_of(name)))


def test_pickled_whole(tmp_path):
    model = BUILDERS["causal-lm"]()
    torch.save(model, tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    assert torch.equal(loaded(*inputs_of("causal-lm")), model(*inputs_of("causal-lm")))


def test_users_may_checkpoint_a_layer_themselves():
    layer = kn.TransformerEncoderLayer(16, 4, 32, 0.0, "gelu", scheme="keel", num_layers=4)
    x = inputs_of("encoder")[0]
    layer(x).square().sum().backward()
    expected = [parameter.grad.clone() for parameter in layer.parameters()]
    layer.zero_grad()
    torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False).square().sum().backward()
    for parameter, reference in zip(layer.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, reference)


def test_weights_may_be_parametrized():
    torch.manual_seed(0)
    layer = kn.TransformerEncoderLayer(16, 4, 32, 0.0, "gelu")
    x = inputs_of("encoder")[0]
    before = layer(x)
    nn.utils.parametrizations.weight_norm(layer.linear1)
    torch.testing.assert_close(layer(x), before)
    layer(x).sum().backward()
    assert layer.linear1.parametrizations.weight.original0.grad is not None
