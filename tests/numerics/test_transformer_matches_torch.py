"""kilolayer's layers, stacks and Transformer against torch.nn's from the same state dict."""

import contextlib
import warnings

import pytest
import torch
from torch import nn
from torch.nn.functional import gelu

from kilolayer import nn as kn

TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}
WIDTH, HEADS, HIDDEN = 16, 4, 24
BATCH, SOURCE, TARGET = 3, 7, 5


@pytest.fixture(autouse=True)
def without_fast_path():
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(enabled)


@contextlib.contextmanager
def nested_tensor_warnings_ignored():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="enable_nested_tensor is True")
        yield


def build_pair(name, *arguments, extra=None, **options):
    """torch.nn's module and kilolayer's with the same values, none of them at its initial value."""
    torch.manual_seed(0)
    if name in ("TransformerEncoder", "TransformerDecoder"):
        layer = name + "Layer"
        with nested_tensor_warnings_ignored():
            reference = getattr(nn, name)(
                getattr(nn, layer)(*arguments, **options), 3, nn.LayerNorm(WIDTH, dtype=options.get("dtype"))
            )
        ours = getattr(kn, name)(
            getattr(kn, layer)(*arguments, **options, **(extra or {})),
            3,
            nn.LayerNorm(WIDTH, dtype=options.get("dtype")),
        )
    else:
        with nested_tensor_warnings_ignored():
            reference = getattr(nn, name)(*arguments, **options)
        ours = getattr(kn, name)(*arguments, **options, **(extra or {}))
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    assert list(ours.state_dict()) == list(reference.state_dict())
    ours.load_state_dict(reference.state_dict())
    return reference, ours


def draw(length, *, batch_first=False, dtype=torch.float64):
    x = torch.randn(BATCH, length, WIDTH, dtype=dtype)
    return (x if batch_first else x.transpose(0, 1).contiguous()).requires_grad_()


def assert_equal(pair, inputs, keywords=None, *, dtype=torch.float64):
    outputs, gradients = [], []
    for module in pair:
        leaves = [x.detach().clone().requires_grad_() for x in inputs]
        torch.manual_seed(1)
        out = module(*leaves, **(keywords or {}))
        torch.manual_seed(2)
        out.backward(torch.randn_like(out) / out.numel() ** 0.5)
        outputs.append(out)
        gradients.append([leaf.grad for leaf in leaves] + [p.grad for p in module.parameters()])
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(outputs[1], outputs[0], rtol=tolerance, atol=tolerance)
    assert all(gradient.abs().max() > 0 for gradient in gradients[0][: len(inputs)])
    for reference, ours in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, reference, rtol=tolerance, atol=tolerance)


def causal(length, dtype=torch.float64):
    return nn.Transformer.generate_square_subsequent_mask(length, dtype=dtype)


def padding(length):
    mask = torch.zeros(BATCH, length, dtype=torch.bool)
    mask[1, -2:] = True
    mask[2, -1:] = True
    return mask


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu", gelu, nn.GELU(), pytest.param(torch.tanh, id="tanh")], ids=str)
@pytest.mark.parametrize("recompute", [False, True])
def test_encoder_layer(dtype, norm_first, activation, recompute):
    pair = build_pair(
        "TransformerEncoderLayer", WIDTH, HEADS, HIDDEN, 0.0, activation, norm_first=norm_first, dtype=dtype,
        extra={"recompute_activations": recompute},
    )  # fmt: skip
    assert_equal(pair, [draw(SOURCE, dtype=dtype)], dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("recompute", [False, True])
def test_decoder_layer(dtype, norm_first, activation, recompute):
    pair = build_pair(
        "TransformerDecoderLayer", WIDTH, HEADS, HIDDEN, 0.0, activation, norm_first=norm_first, dtype=dtype,
        extra={"recompute_activations": recompute},
    )  # fmt: skip
    assert_equal(pair, [draw(TARGET, dtype=dtype), draw(SOURCE, dtype=dtype)], dtype=dtype)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
def test_layouts_and_missing_biases(batch_first, bias, norm_first):
    options = {"batch_first": batch_first, "bias": bias, "norm_first": norm_first, "dtype": torch.float64}
    source, target = draw(SOURCE, batch_first=batch_first), draw(TARGET, batch_first=batch_first)
    assert_equal(build_pair("TransformerEncoderLayer", WIDTH, HEADS, HIDDEN, 0.0, **options), [source])
    assert_equal(build_pair("TransformerDecoderLayer", WIDTH, HEADS, HIDDEN, 0.0, **options), [target, source])


@pytest.mark.parametrize("norm_first", [False, True])
def test_dropout_falls_in_the_same_places(norm_first):
    options = {"norm_first": norm_first, "dtype": torch.float64}
    source, target = draw(SOURCE), draw(TARGET)
    assert_equal(build_pair("TransformerEncoderLayer", WIDTH, HEADS, HIDDEN, 0.4, **options), [source])
    assert_equal(build_pair("TransformerDecoderLayer", WIDTH, HEADS, HIDDEN, 0.4, **options), [target, source])
    assert_equal(build_pair("TransformerEncoder", WIDTH, HEADS, HIDDEN, 0.4, "gelu", **options), [source])


ENCODER_MASKS = {
    "boolean": {"src_mask": causal(SOURCE).isinf()},
    "additive": {"src_mask": causal(SOURCE)},
    "one per head": {"src_mask": torch.linspace(-1, 1, BATCH * HEADS).double()[:, None, None] * torch.ones(SOURCE, SOURCE).double()
                     + causal(SOURCE)},
    "padding": {"src_key_padding_mask": padding(SOURCE)},
    "additive padding": {"src_key_padding_mask": padding(SOURCE).double() * -3},
    "boolean and padding": {"src_mask": causal(SOURCE).isinf(), "src_key_padding_mask": padding(SOURCE)},
    "additive and padding": {
        "src_mask": causal(SOURCE), "src_key_padding_mask": torch.zeros(BATCH, SOURCE).double().masked_fill(padding(SOURCE), -1e9),
    },
    "causal": {"src_mask": causal(SOURCE), "is_causal": True},
    "causal and padding": {
        "src_mask": causal(SOURCE).isinf(), "src_key_padding_mask": padding(SOURCE), "is_causal": True,
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", ENCODER_MASKS)
@pytest.mark.parametrize("batch_first", [False, True])
def test_encoder_masks(kind, batch_first):
    pair = build_pair(
        "TransformerEncoderLayer", WIDTH, HEADS, HIDDEN, 0.0, batch_first=batch_first, dtype=torch.float64
    )
    assert_equal(pair, [draw(SOURCE, batch_first=batch_first)], ENCODER_MASKS[kind])


@pytest.mark.parametrize("batch_first", [False, True])
def test_decoder_masks(batch_first):
    pair = build_pair(
        "TransformerDecoderLayer", WIDTH, HEADS, HIDDEN, 0.0, batch_first=batch_first, dtype=torch.float64
    )
    masks = {
        "tgt_mask": causal(TARGET).isinf(),
        "memory_mask": torch.randn(TARGET, SOURCE, dtype=torch.float64),
        "tgt_key_padding_mask": padding(TARGET),
        "memory_key_padding_mask": padding(SOURCE).double() * -5,
    }
    assert_equal(pair, [draw(TARGET, batch_first=batch_first), draw(SOURCE, batch_first=batch_first)], masks)
    is_causal = {"tgt_mask": causal(TARGET), "tgt_is_causal": True}
    assert_equal(pair, [draw(TARGET, batch_first=batch_first), draw(SOURCE, batch_first=batch_first)], is_causal)


def test_unbatched_sequences():
    encoder = build_pair("TransformerEncoder", WIDTH, HEADS, HIDDEN, 0.0, dtype=torch.float64)
    decoder = build_pair("TransformerDecoder", WIDTH, HEADS, HIDDEN, 0.0, dtype=torch.float64, batch_first=True)
    one = torch.randn(SOURCE, WIDTH, dtype=torch.float64)
    pad = torch.arange(SOURCE) >= SOURCE - 2
    assert_equal(encoder, [one], {"src_key_padding_mask": pad})
    assert_equal(decoder, [one, one], {"memory_key_padding_mask": pad, "tgt_mask": causal(SOURCE)})
    assert_equal([module.layers[0] for module in encoder], [one], {"src_key_padding_mask": pad})
    assert_equal([module.layers[0] for module in decoder], [one, one], {"memory_key_padding_mask": pad})


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_stacks(norm_first, activation):
    options = {"norm_first": norm_first, "dtype": torch.float64}
    encoder = build_pair("TransformerEncoder", WIDTH, HEADS, HIDDEN, 0.0, activation, **options)
    decoder = build_pair("TransformerDecoder", WIDTH, HEADS, HIDDEN, 0.0, activation, **options)
    pad = padding(SOURCE)
    for masks in (
        {},
        {"mask": causal(SOURCE)},
        {"mask": causal(SOURCE), "is_causal": True},
        {"src_key_padding_mask": pad},
    ):
        assert_equal(encoder, [draw(SOURCE)], masks)
    masks = {"tgt_mask": causal(TARGET), "memory_key_padding_mask": padding(SOURCE).double() * -9}
    assert_equal(decoder, [draw(TARGET), draw(SOURCE)], masks)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_transformer(dtype, norm_first, batch_first):
    pair = build_pair(
        "Transformer", WIDTH, HEADS, 2, 3, HIDDEN, 0.0, "gelu",
        norm_first=norm_first, batch_first=batch_first, dtype=dtype,
    )  # fmt: skip
    inputs = [draw(length, batch_first=batch_first, dtype=dtype) for length in (SOURCE, TARGET)]
    masks = {
        "tgt_mask": causal(TARGET, dtype).isinf(),
        "src_key_padding_mask": padding(SOURCE),
        "memory_key_padding_mask": padding(SOURCE),
    }
    assert_equal(pair, inputs, masks, dtype=dtype)
    assert_equal(pair, inputs, {"tgt_mask": causal(TARGET, dtype), "tgt_is_causal": True}, dtype=dtype)


def test_evaluation_without_gradients():
    reference, ours = build_pair("TransformerEncoder", WIDTH, HEADS, HIDDEN, 0.3, dtype=torch.float64)
    reference.eval(), ours.eval()
    x = draw(SOURCE)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), reference(x), rtol=1e-12, atol=1e-12)


def test_a_causal_hint_needs_no_mask():
    _, ours = build_pair("TransformerEncoder", WIDTH, HEADS, HIDDEN, 0.0, dtype=torch.float64)
    x, pad = draw(SOURCE), padding(SOURCE)
    both = ours(x, mask=causal(SOURCE).isinf(), src_key_padding_mask=pad)
    torch.testing.assert_close(ours(x, is_causal=True), ours(x, mask=causal(SOURCE)), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(ours(x, src_key_padding_mask=pad, is_causal=True), both, rtol=1e-12, atol=1e-12)


def test_the_causal_mask_is_torchs():
    for dtype in (torch.float32, torch.float64):
        ours = kn.Transformer.generate_square_subsequent_mask(4, dtype=dtype)
        torch.testing.assert_close(ours, causal(4, dtype), rtol=0, atol=0)
