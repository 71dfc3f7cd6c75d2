"""Branches as one step of autograd: hand-written backward passes, and who may take them."""

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck

from kilolayer import nn as kn
from kilolayer.nn import fused_layer
from kilolayer.nn.fused_branch import AttentionBranch, FeedForwardBranch, Frame, HeadLayout

WIDTH, HIDDEN, HEADS = 4, 6, 2
FRAMES = [
    Frame("layer", 1e-5, True, 1.7, 1.0),  # post-norm, DeepNorm
    Frame("layer", 1e-5, False, 1.0, 0.5),  # pre-norm with a branch factor
    Frame("rms", 1e-6, True, 1.3, 1.0),
    Frame("rms", 1e-6, False, 1.0, 1.0),
    Frame(None, 0.0, False, 0.7, 1.0),
]


def leaf(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def norm_inputs(frame, with_bias):
    if frame.norm is None:
        return None, None
    return leaf(WIDTH), leaf(WIDTH) if with_bias and frame.norm == "layer" else None


@pytest.mark.parametrize("frame", FRAMES, ids=str)
@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
@pytest.mark.parametrize("with_bias", [True, False])
def test_feed_forward(frame, activation, with_bias):
    b1, b2 = (leaf(HIDDEN), leaf(WIDTH)) if with_bias else (None, None)
    inputs = (leaf(2, 3, WIDTH), *norm_inputs(frame, with_bias), leaf(HIDDEN, WIDTH), b1, leaf(WIDTH, HIDDEN), b2)
    assert gradcheck(FeedForwardBranch.apply, (*inputs, frame, activation))


@pytest.mark.parametrize("frame", FRAMES, ids=str)
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("with_bias", [True, False])
def test_self_attention(frame, batch_first, is_causal, with_bias):
    b_in, b_out = (leaf(3 * WIDTH), leaf(WIDTH)) if with_bias else (None, None)
    weights = (leaf(3 * WIDTH, WIDTH), b_in, leaf(WIDTH, WIDTH), b_out)
    layout = HeadLayout(HEADS, batch_first, is_causal)
    inputs = (leaf(2, 3, WIDTH), None, *norm_inputs(frame, with_bias), *weights, None, frame, layout)
    assert gradcheck(AttentionBranch.apply, inputs)


@pytest.mark.parametrize("frame", FRAMES, ids=str)
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("memory_needs_grad", [True, False])
def test_cross_attention_under_a_mask(frame, batch_first, memory_needs_grad):
    layout = HeadLayout(HEADS, batch_first, False)
    x, memory = (leaf(2, 3, WIDTH), leaf(2, 5, WIDTH)) if batch_first else (leaf(3, 2, WIDTH), leaf(5, 2, WIDTH))
    memory.requires_grad_(memory_needs_grad)
    mask = torch.zeros(2, 1, 1, 5, dtype=torch.float64)
    mask[0, ..., -2:] = -torch.inf
    weights = (leaf(3 * WIDTH, WIDTH), leaf(3 * WIDTH), leaf(WIDTH, WIDTH), leaf(WIDTH))
    assert gradcheck(AttentionBranch.apply, (x, memory, *norm_inputs(frame, True), *weights, mask, frame, layout))


def models(scheme, **options):
    """A plain one and a lean one with the same values, none of them special."""
    both = []
    for recompute in (False, True):
        config = kn.TransformerConfig(
            vocab_size=11, width=8, num_heads=2, encoder_layers=3, decoder_layers=3, scheme=scheme,
            recompute_activations=recompute, **options,
        )  # fmt: skip
        both.append(kn.Seq2Seq(config).double())
    with torch.no_grad():
        for parameter in both[0].parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    both[1].load_state_dict(both[0].state_dict())
    return both


@pytest.fixture
def taken(monkeypatch):
    """Counts the branches that ran as one step."""
    count = []
    original = fused_layer.fuse_branch

    def counting(layer, number, *args, **kwargs):
        count.append(number)
        return original(layer, number, *args, **kwargs)

    monkeypatch.setattr("kilolayer.nn.lean_layer.fuse_branch", counting)
    return count


@pytest.mark.parametrize("scheme", ["residual", "post-ln", "pre-ln", "deepnorm", "keel", "mix-ln"])
@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("padded", [True, False])
def test_one_step_equals_many(scheme, activation, norm, padded, taken):
    plain, lean = models(scheme, activation=activation, norm=norm)
    source, target = torch.randint(11, (2, 6)), torch.randint(11, (2, 5))
    padding = {}
    if padded:
        padding = {
            "source_padding": torch.arange(6).expand(2, 6) >= torch.tensor([[6], [3]]),
            "target_padding": torch.arange(5).expand(2, 5) >= torch.tensor([[4], [5]]),
        }
    outputs = [model(source, target, **padding) for model in (plain, lean)]
    assert taken == [1, 2] * 3 + [1, 2, 3] * 3
    torch.testing.assert_close(*outputs, rtol=1e-12, atol=1e-12)
    for out in outputs:
        out.square().mean().backward()
    for (name, one), two in zip(plain.named_parameters(), lean.parameters(), strict=True):
        scale = one.grad.abs().max().item()  # the gradient of a key's bias is 0 but for rounding
        torch.testing.assert_close(
            one.grad, two.grad, rtol=1e-10, atol=1e-12 * scale, msg=lambda text, name=name: name + text
        )


@pytest.mark.parametrize(
    "options",
    [
        {"qk_norm": True},
        {"num_kv_heads": 1},
        {"positions": "rotary"},
        {"dropout": 0.1},
        {"activation": "swiglu"},
        {"scheme": "sandwich-ln"},
        {"scheme": "sub-ln"},
        {"scheme": "rezero"},
        {"scheme": "b2t"},
    ],
    ids=str,
)
def test_what_has_no_step_of_its_own_takes_many(options, taken):
    model = models(**({"scheme": "deepnorm", "tied_head": False} | options))[1]
    model(torch.randint(11, (2, 6)), torch.randint(11, (2, 5))).sum().backward()
    assert taken == []


def test_frozen_hooked_autocast_or_functional_layers_take_many(taken):
    def run(model, **options):
        model(torch.randint(11, (2, 6)), torch.randint(11, (2, 5)), **options).sum().backward()

    frozen = models("deepnorm")[1]
    for layer in (*frozen.encoder.layers, *frozen.decoder.layers):
        layer.linear1.weight.requires_grad_(False)
    run(frozen)
    hooked = models("deepnorm")[1]
    for module in hooked.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(lambda *args: None)
    run(hooked)
    with torch.autocast("cpu", torch.bfloat16):
        run(models("deepnorm")[1].float())
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        run(models("deepnorm")[1])
    assert taken == []


def test_a_second_derivative_is_there_where_the_kernel_has_one(taken):
    model = models("deepnorm", activation="gelu")[1]
    source, target = torch.randint(11, (2, 6)), torch.randint(11, (2, 5))
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        loss = model(source, target).square().mean()
        weight = model.encoder.layers[0].linear1.weight
        (grad,) = torch.autograd.grad(loss, weight, create_graph=True)
        (second,) = torch.autograd.grad(grad.square().sum(), weight)
    assert torch.isfinite(second).all()
    assert second.abs().max() > 0


def test_an_empty_batch_passes():
    model = models("deepnorm")[1]
    empty = torch.zeros(0, 4, dtype=torch.int64)
    assert model(empty, empty).shape == (0, 4, 11)


@pytest.mark.parametrize("scheme", ["residual", "post-ln", "pre-ln", "deepnorm", "keel"])
@pytest.mark.parametrize("every", [1, 2, "auto"])
def test_checkpointed_segments_of_single_steps_have_the_same_gradients(scheme, every, taken):
    plain, _ = models(scheme)
    segmented = models(scheme, checkpoint_every=every)[1]
    segmented.load_state_dict(plain.state_dict())
    source, target = torch.randint(11, (2, 6)), torch.randint(11, (2, 5))
    padding = {"source_padding": torch.arange(6).expand(2, 6) >= torch.tensor([[6], [3]])}
    outputs = [model(source, target, **padding) for model in (plain, segmented)]
    torch.testing.assert_close(*outputs, rtol=1e-12, atol=1e-12)
    in_forward = len(taken)
    for out in outputs:
        out.square().mean().backward()
    assert in_forward == 3 * 2 + 3 * 3
    assert len(taken) == 2 * in_forward
    for (name, one), two in zip(plain.named_parameters(), segmented.parameters(), strict=True):
        scale = one.grad.abs().max().item()
        torch.testing.assert_close(
            one.grad, two.grad, rtol=1e-10, atol=1e-12 * scale, msg=lambda text, name=name: name + text
        )


def test_checkpointed_segments_answer_autograd_grad_and_inputs_without_gradients():
    model = kn.TransformerEncoder(
        kn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, scheme="deepnorm"), 4, checkpoint_every=2
    ).double()
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    weight = model.layers[0].linear1.weight
    (alone,) = torch.autograd.grad(model(x).square().mean(), weight)
    x.requires_grad_()
    with_x, grad_x = torch.autograd.grad(model(x).square().mean(), (weight, x))
    torch.testing.assert_close(alone, with_x)
    assert grad_x.abs().max() > 0


def encoder(**options):
    layer = kn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, scheme="deepnorm")
    return kn.TransformerEncoder(layer, 2, **options).double()


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class Shifted(nn.GELU):
    def forward(self, x):
        return super().forward(x) + 1


class OwnFeedForward(kn.TransformerEncoderLayer):
    def feed_forward(self, h):
        return 2 * super().feed_forward(h)


def hook_output(layer):
    layer.self_attn.out_proj.register_forward_hook(lambda module, args, out: 2 * out)


def other_output(layer):
    other = Doubled(8, 8).double()
    other.load_state_dict(layer.self_attn.out_proj.state_dict())
    layer.self_attn.out_proj = other


def wrapped_output(layer):
    layer.self_attn.out_proj = nn.Sequential(layer.self_attn.out_proj, nn.Tanh())


def other_activation(layer):
    layer.activation = Shifted()


def patched_method(layer):
    layer.feed_forward = lambda h: torch.zeros_like(h)


def hook_dropout(layer):
    layer.dropout1.register_forward_hook(lambda module, args, out: 2 * out)


def other_forward(layer):
    layer.self_attn.out_proj.forward = lambda x: torch.zeros_like(x)


@pytest.mark.parametrize(
    "change",
    [hook_output, other_output, wrapped_output, other_activation, patched_method, hook_dropout, other_forward],
    ids=lambda change: change.__name__,
)
@pytest.mark.parametrize("checkpoint_every", [None, 1])
def test_what_was_attached_to_any_part_of_a_layer_is_obeyed(change, checkpoint_every):
    model = encoder(checkpoint_every=checkpoint_every)
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    before = model(x)
    change(model.layers[0])
    with torch.no_grad():
        wanted = model(x)
    torch.testing.assert_close(model(x), wanted)
    assert (before - wanted).abs().max() > 1e-3


def test_a_subclass_with_a_feed_forward_of_its_own_is_obeyed():
    layer = OwnFeedForward(8, 2, 16, dropout=0.0, batch_first=True).double()
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    with torch.no_grad():
        wanted = layer(x)
    torch.testing.assert_close(layer(x), wanted)


def test_dropout_is_what_the_modules_say_now():
    model = encoder()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.5
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.train()
    assert not torch.equal(model(x), model(x))


@pytest.mark.parametrize("memory_batch", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("target_batch", [1, 2, 8])
def test_a_memory_of_another_batch_is_what_it_is_in_many_steps(memory_batch, target_batch):
    plain, fused = models("deepnorm")
    x = torch.randn(target_batch, 5, 8, dtype=torch.float64)
    memory = torch.randn(memory_batch, 7, 8, dtype=torch.float64)
    results = []
    for model in (plain, fused):
        context = kn.context.LayerContext(memory=memory)
        try:
            results.append(model.decoder(x, context))
        except RuntimeError as error:
            results.append(str(error))
    if isinstance(results[0], str):
        assert results[0] == results[1]
    else:
        torch.testing.assert_close(*results)
        results[1].sum().backward()


def test_masks_and_memories_that_do_not_fit_are_errors():
    model = encoder()
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    with pytest.raises(RuntimeError):
        model(x, mask=torch.zeros(4, 4, dtype=torch.float64))
    decoder = models("deepnorm")[1].decoder
    for shape in ((2, 0, 8), (2, 7, 6)):
        memory = torch.randn(*shape, dtype=torch.float64)
        if shape[1]:
            with pytest.raises(RuntimeError):
                decoder(x, kn.context.LayerContext(memory=memory))
        else:
            assert torch.isfinite(decoder(x, kn.context.LayerContext(memory=memory))).all()


@pytest.mark.parametrize("tied", ["layer", "weight", "norm"])
@pytest.mark.parametrize("every", [None, 1, 2, 4])
def test_tied_parameters_have_one_gradient(tied, every):
    gradients = []
    for recompute in (False, True):
        torch.manual_seed(1)
        layer = kn.TransformerEncoderLayer(
            8, 2, 16, dropout=0.0, batch_first=True, scheme="deepnorm", recompute_activations=recompute
        )
        model = kn.TransformerEncoder(layer, 4, checkpoint_every=every).double()
        first = model.layers[0]
        for index in range(1, 4):
            if tied == "layer":
                model.layers[index] = first
            elif tied == "weight":
                model.layers[index].linear1.weight = first.linear1.weight
            else:
                model.layers[index].norm1 = first.norm1
        torch.manual_seed(2)
        model(torch.randn(2, 3, 8, dtype=torch.float64)).square().mean().backward()
        gradients.append([p.grad for p in model.parameters()])
    for one, two in zip(*gradients, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-12)


def test_changes_between_forward_and_backward_are_errors():
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    for every in (None, 1):
        model = encoder(checkpoint_every=every)
        loss = model(x).square().mean()
        with torch.no_grad():
            model.layers[0].linear1.weight.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
    model = encoder(checkpoint_every=1)
    mask = torch.zeros(3, 3, dtype=torch.float64)
    loss = model(x, mask=mask).square().mean()
    mask[0, 2] = -torch.inf
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    values = {name: p.detach().clone().requires_grad_() for name, p in encoder().named_parameters()}
    out = torch.func.functional_call(encoder(), values, (x,))
    out.square().mean().backward()
    assert all(value.grad is not None for value in values.values())


def test_a_backward_under_autocast_and_batched_gradients():
    x = torch.randn(2, 3, 8)
    for every in (None, 1):
        model = encoder(checkpoint_every=every).float()
        wanted = torch.autograd.grad(model(x).square().mean(), list(model.parameters()))
        loss = model(x).square().mean()
        with torch.autocast("cpu", torch.bfloat16):
            found = torch.autograd.grad(loss, list(model.parameters()))
        for one, two in zip(wanted, found, strict=True):
            torch.testing.assert_close(one, two)
    model, x = encoder(), x.double().requires_grad_()
    out = model(x)
    seeds = torch.randn(3, *out.shape, dtype=torch.float64)
    (batched,) = torch.autograd.grad(out, x, seeds, is_grads_batched=True, retain_graph=True)
    one_by_one = torch.stack([torch.autograd.grad(out, x, seed, retain_graph=True)[0] for seed in seeds])
    torch.testing.assert_close(batched, one_by_one)


def test_the_meta_device_runs_forward():
    with torch.device("meta"):
        assert encoder()(torch.zeros(2, 3, 8, dtype=torch.float64)).shape == (2, 3, 8)
