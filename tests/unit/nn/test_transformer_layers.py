import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kilolayer import nn as kn
from kilolayer.schemes import SCHEMES, Depth, get_scheme

LAYERS = 8
NEEDS_DEPTH = [s.name for s in SCHEMES if s.uses_depth != "never" or s.varies_by_layer or s.needs_profile]


def with_profile(scheme, depth):
    if not scheme.needs_profile:
        return scheme
    return scheme.with_profile({s: [0.3 + 0.1 * i for i in range(depth.num_branches(s))] for s in depth.stacks})


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def norm_of(layer, slot, number, scales):
    """The module of a norm slot, found by the naming rule alone."""
    slots = [one for one in scales.norm_slots if one != "inner"]
    if slot not in slots:
        return nn.Identity()
    return getattr(layer, f"norm{number}" if slot == slots[0] else f"{slot}_norm{number}")


def branch_by_formula(layer, number, x, memory):
    heads, width = layer.self_attn.num_heads, x.shape[-1]
    if number == len(layer.scales):
        h = F.relu(layer.linear1(x))
        return layer.linear2(h if layer.inner_norm is None else layer.inner_norm(h))
    attention = layer.self_attn if number == 1 else layer.multihead_attn
    q, k, v = (
        F.linear(y, w, b).unflatten(-1, (heads, -1)).transpose(1, 2)
        for y, w, b in zip(
            (x, memory, memory), attention.in_proj_weight.chunk(3), attention.in_proj_bias.chunk(3), strict=True
        )
    )
    weights = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(width // heads), dim=-1)
    mixed = (weights @ v).transpose(1, 2).flatten(-2)
    return attention.out_proj(mixed if attention.inner_norm is None else attention.inner_norm(mixed))


def layer_by_formula(layer, x, memory):
    layer_in = x
    for number, scales in enumerate(layer.scales, start=1):
        pre, end, post = (norm_of(layer, slot, number, scales) for slot in ("pre", "end", "post"))
        branch_in = scales.norm_output_scale * pre(x)
        seen = memory if number == 2 and len(layer.scales) == 3 else branch_in
        branch_out = end(branch_by_formula(layer, number, branch_in, seen))
        names = dict(layer.named_parameters(recurse=False))
        branch_scale = names.get(f"branch_scale{number}", names.get("branch_scale", scales.branch_scale))
        skip_scale = names.get(f"skip_scale{number}", scales.skip_scale) if scales.has_skip else 0.0
        x = post(skip_scale * x + scales.layer_skip_scale * layer_in + branch_scale * branch_out)
    return x


@pytest.mark.parametrize("name", [scheme.name for scheme in SCHEMES])
@pytest.mark.parametrize("recompute", [True, False])
def test_every_scheme_is_its_formula(name, recompute):
    depth = Depth(encoder_layers=LAYERS, decoder_layers=LAYERS)
    scheme = with_profile(get_scheme(name), depth)
    options = {
        "dropout": 0.0, "batch_first": True, "dtype": torch.float64, "scheme": scheme, "num_layers": depth,
        "layer_index": 3, "recompute_activations": recompute,
    }  # fmt: skip
    encoder = kn.TransformerEncoderLayer(8, 2, 16, **options)
    decoder = kn.TransformerDecoderLayer(8, 2, 16, **options)
    x, memory = torch.randn(2, 5, 8, dtype=torch.float64), torch.randn(2, 7, 8, dtype=torch.float64)
    for layer in (encoder, decoder):
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.add_(0.2 * torch.randn_like(parameter))
    torch.testing.assert_close(encoder(x), layer_by_formula(encoder, x, None), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(decoder(x, memory), layer_by_formula(decoder, x, memory), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", [scheme.name for scheme in SCHEMES])
def test_scales_are_those_of_the_place(name):
    depth = Depth(encoder_layers=LAYERS, decoder_layers=LAYERS)
    scheme = with_profile(get_scheme(name), depth)
    template = kn.TransformerDecoderLayer(8, 2, 16, scheme=scheme, num_layers=depth)
    decoder = kn.TransformerDecoder(template, LAYERS)
    for index, layer in enumerate(decoder.layers):
        assert layer.scales == tuple(scheme.at(depth, 3 * index + branch, "decoder") for branch in range(3))


@pytest.mark.parametrize("name", [scheme.name for scheme in SCHEMES])
def test_only_norms_and_trained_scales_are_added_to_torchs_keys(name):
    scheme = with_profile(get_scheme(name), Depth(encoder_layers=LAYERS))
    layer = kn.TransformerEncoderLayer(8, 2, 16, scheme=scheme, num_layers=LAYERS, layer_index=0)
    torchs = set(nn.TransformerEncoderLayer(8, 2, 16).state_dict())
    own = set(layer.state_dict())
    scales = layer.scales[0]
    extra = {
        key
        for slot in scales.norm_slots[1:]
        for number in (1, 2)
        for key in (
            {f"{slot}_norm{number}.weight", f"{slot}_norm{number}.bias"}
            if slot != "inner"
            else {"self_attn.inner_norm.weight", "self_attn.inner_norm.bias", "inner_norm.weight", "inner_norm.bias"}
        )
    }
    if scales.learned:
        extra |= {"branch_scale"} if scales.learned_per == "layer" else {"branch_scale1", "branch_scale2"}
    if scales.skip_learned:
        extra |= {"skip_scale1", "skip_scale2"}
    if scheme.uses_depth == "forward":
        extra |= {"depth_guard.num_layers"}
    missing = set() if scales.norm_slots else {key for key in torchs if key.startswith("norm")}
    assert own - torchs == extra
    assert torchs - own == missing


def test_post_ln_and_pre_ln_have_torchs_keys_exactly():
    options = {"d_model": 8, "nhead": 2, "num_encoder_layers": 2, "num_decoder_layers": 2, "dim_feedforward": 16}
    keys = list(nn.Transformer(**options, batch_first=True).state_dict())
    for chosen in ({}, {"scheme": "post-ln"}, {"scheme": "pre-ln"}, {"norm_first": True}):
        assert list(kn.Transformer(**options, **chosen).state_dict()) == keys


def test_norm_first_means_pre_ln():
    assert kn.TransformerEncoderLayer(8, 2, 16).place.scheme.name == "post-ln"
    for options in ({"norm_first": True}, {"norm_first": True, "scheme": "post-ln"}, {"scheme": "pre-ln"}):
        layer = kn.TransformerEncoderLayer(8, 2, 16, **options)
        assert layer.place.scheme.name == "pre-ln"
        assert layer.norm_first
    assert not kn.TransformerEncoderLayer(8, 2, 16, scheme="deepnorm", num_layers=2).norm_first
    with pytest.raises(ValueError, match=r"norm_first=True means scheme='pre-ln', got scheme='deepnorm'"):
        kn.TransformerEncoderLayer(8, 2, 16, norm_first=True, scheme="deepnorm")


@pytest.mark.parametrize("name", NEEDS_DEPTH)
def test_a_lone_layer_of_a_depth_dependent_scheme_says_what_it_needs(name):
    encoder = kn.TransformerEncoderLayer(8, 2, 16, scheme=name)
    with pytest.raises(ValueError, match=rf"lone TransformerEncoderLayer under scheme '{name}' needs num_layers="):
        encoder(torch.zeros(3, 2, 8))
    decoder = kn.TransformerDecoderLayer(8, 2, 16, scheme=name)
    with pytest.raises(ValueError, match=r"lone TransformerDecoderLayer .* needs num_layers="):
        decoder(torch.zeros(3, 2, 8), torch.zeros(3, 2, 8))


def test_a_lone_layer_whose_scheme_varies_needs_its_index():
    layer = kn.TransformerEncoderLayer(8, 2, 16, scheme="mix-ln", num_layers=8)
    with pytest.raises(ValueError, match=r"layer_index= \(its place in that stack, from 0\)"):
        layer(torch.zeros(3, 2, 8))
    first, last = (kn.TransformerEncoderLayer(8, 2, 16, scheme="mix-ln", num_layers=8, layer_index=i) for i in (0, 7))
    assert (first.scales[0].norm_placement, last.scales[0].norm_placement) == ("post", "pre")


@pytest.mark.parametrize("name", [s.name for s in SCHEMES if s.name not in NEEDS_DEPTH])
def test_a_lone_layer_of_another_scheme_runs(name):
    layer = kn.TransformerEncoderLayer(8, 2, 16, scheme=name)
    assert layer(torch.randn(3, 2, 8)).shape == (3, 2, 8)


def test_a_stack_rebuilds_its_template():
    template = kn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", scheme="deepnorm", batch_first=True).double()
    stack = kn.TransformerEncoder(template, 6)
    weights = [layer.linear1.weight for layer in stack.layers]
    assert all(not torch.equal(a, b) for i, a in enumerate(weights) for b in weights[:i])
    assert all(not torch.equal(weight, template.linear1.weight) for weight in weights)
    assert all(weight.dtype == torch.float64 for weight in weights)
    assert all(layer.options.batch_first and layer.options.activation == "gelu" for layer in stack.layers)
    assert {layer.scales[0].skip_scale for layer in stack.layers} == {12**0.25}
    assert [layer.place.layer_index for layer in stack.layers] == list(range(6))
    assert type(stack.layers[0]) is kn.TransformerEncoderLayer
    assert not kn.TransformerEncoder(template.eval(), 2).layers[0].training


def test_an_activation_with_parameters_is_not_shared():
    stack = kn.TransformerEncoder(kn.TransformerEncoderLayer(8, 2, 16, 0.0, nn.PReLU(init=0.3)), 2)
    slopes = [layer.activation.weight for layer in stack.layers]
    assert slopes[0] is not slopes[1]
    assert [slope.item() for slope in slopes] == pytest.approx([0.3, 0.3])


def test_a_template_of_another_depth_is_refused():
    template = kn.TransformerEncoderLayer(8, 2, 16, scheme="deepnorm", num_layers=12)
    assert len(kn.TransformerEncoder(template, 12).layers) == 12
    with pytest.raises(ValueError, match=r"built for num_layers=12, the stack has 6 layers"):
        kn.TransformerEncoder(template, 6)
    coupled = Depth(encoder_layers=6, decoder_layers=3)
    encoder = kn.TransformerEncoder(kn.TransformerEncoderLayer(8, 2, 16, scheme="deepnorm", num_layers=coupled), 6)
    assert encoder.layers[0].scales == (get_scheme("deepnorm").at(coupled, 0),) * 2


def test_torchs_layers_are_no_templates():
    with pytest.raises(TypeError, match=r"got torch.nn.*TransformerEncoderLayer, use kilolayer.nn"):
        kn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 2)
    with pytest.raises(TypeError, match=r"use kilolayer.nn.TransformerDecoderLayer"):
        kn.TransformerDecoder(kn.TransformerEncoderLayer(8, 2, 16), 2)


def test_transformer_takes_scales_from_both_depths():
    model = kn.Transformer(8, 2, 6, 3, 16, scheme="deepnorm")
    depth, deepnorm = Depth(encoder_layers=6, decoder_layers=3), get_scheme("deepnorm")
    assert model.encoder.layers[5].scales[1] == deepnorm.at(depth, 11, "encoder")
    assert model.decoder.layers[2].scales[2] == deepnorm.at(depth, 8, "decoder")
    assert model.encoder.depth_guard.num_layers.tolist() == [6, 3]


def test_custom_stacks_are_used_as_they_are():
    encoder, decoder = nn.Identity(), nn.Identity()
    model = kn.Transformer(8, 2, custom_encoder=encoder, custom_decoder=decoder)
    assert model.encoder is encoder
    assert model.decoder is decoder


def test_hooked_and_replaced_modules_are_called():
    stack = kn.TransformerEncoder(kn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu"), 2)
    x = torch.randn(3, 2, 8)
    expected = stack(x)
    for path in ("layers.0", "layers.1.self_attn", "layers.0.norm1", "layers.1.linear2", "layers.1.norm2"):
        seen = []
        handle = stack.get_submodule(path).register_forward_hook(lambda m, i, out, seen=seen: seen.append(out))
        torch.testing.assert_close(stack(x), expected)
        assert len(seen) == 1
        handle.remove()
    stack.layers[0].norm1 = nn.Identity()
    stack.layers[1].linear1 = nn.Sequential(stack.layers[1].linear1, nn.Tanh())
    with torch.no_grad():
        without = stack(x)
    torch.testing.assert_close(stack(x), without)
    assert not torch.allclose(without, expected)


def test_a_replaced_activation_is_used():
    layer = kn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu")
    x = torch.randn(3, 2, 8)
    layer.activation = F.silu
    with torch.no_grad():
        expected = layer(x)
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize("value", [0, -2])
def test_counts_below_one(value):
    layer = kn.TransformerEncoderLayer(8, 2, 16)
    builders = {
        "num_layers": lambda: kn.TransformerEncoder(layer, value),
        "num_encoder_layers": lambda: kn.Transformer(8, 2, value),
        "num_decoder_layers": lambda: kn.Transformer(8, 2, 1, value),
        "num_heads": lambda: kn.TransformerEncoderLayer(8, value),
        "width": lambda: kn.TransformerEncoderLayer(value, 2),
        "hidden": lambda: kn.TransformerEncoderLayer(8, 2, value),
    }
    for name, build in builders.items():
        with pytest.raises(ValueError, match=rf"{name} must be >= 1, got {value}"):
            build()
    with pytest.raises(ValueError, match=rf"num_layers must be >= 1, got {value}"):
        kn.TransformerEncoderLayer(8, 2, num_layers=value)


BAD_ARGUMENTS = [
    ({"nhead": 3}, ValueError, r"width 8 is not divisible by 3 heads; use 9"),
    ({"scheme": "deep-norm", "num_layers": 2}, ValueError, r"unknown scheme 'deep-norm'; did you mean 'deepnorm'"),
    ({"activation": "gelo"}, ValueError, r"unknown activation 'gelo'; did you mean 'gelu'"),
    ({"activation": "xyz"}, ValueError, r"unknown activation 'xyz'; known: relu, gelu, silu, swiglu"),
    ({"activation": 3}, TypeError, r"activation must be a name or a callable, got 3"),
    ({"norm": "layers"}, ValueError, r"unknown norm 'layers'; did you mean 'layer'"),
    ({"norm": "batch"}, ValueError, r"unknown norm 'batch'; a Transformer layer takes 'layer' or 'rms'"),
    ({"dropout": 1.5}, ValueError, r"dropout must be in \[0, 1\), got 1.5"),
    ({"dim_feedforward": 2.5}, TypeError, r"hidden must be an int, got 2.5"),
    ({"num_layers": "6"}, TypeError, r"num_layers must be an int or a Depth, got '6'"),
    ({"num_layers": 4, "layer_index": 4}, ValueError, r"layer_index 4 is outside of a stack of 4 layers"),
    ({"num_layers": Depth(decoder_layers=2)}, ValueError, r"has no encoder layer, and this is one"),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "error", "message"), BAD_ARGUMENTS)
def test_bad_arguments(wrong, error, message):
    with pytest.raises(error, match=message):
        kn.TransformerEncoderLayer(**({"d_model": 8, "nhead": 2, "dim_feedforward": 16} | wrong))


def test_a_decoder_layer_needs_an_encoder_beside_it():
    with pytest.raises(ValueError, match=r"has no encoder, but this decoder layer attends to one"):
        kn.TransformerDecoderLayer(8, 2, 16, scheme="deepnorm", num_layers=Depth(decoder_layers=4))


def test_a_rule_without_formula_for_these_branch_counts():
    depth = Depth(encoder_layers=2, decoder_layers=2, encoder_branches_per_layer=3)
    with pytest.raises(ValueError, match=r"cannot stand in a stack of 3 per layer"):
        kn.TransformerEncoderLayer(8, 2, 16, scheme="deepnorm", num_layers=depth)


def test_shapes_that_do_not_fit():
    model = kn.Transformer(8, 2, 1, 1, 16)
    with pytest.raises(ValueError, match=r"same batch size, got 2 and 3; the batch is dimension 1"):
        model(torch.zeros(4, 2, 8), torch.zeros(4, 3, 8))
    with pytest.raises(ValueError, match=r"must have 8 features, got 8 and 6"):
        model(torch.zeros(4, 2, 8), torch.zeros(4, 2, 6))


def test_masks_that_do_not_fit():
    layer = kn.TransformerEncoderLayer(8, 2, 16)
    x = torch.zeros(4, 3, 8)
    with pytest.raises(ValueError, match=r"shape \(queries, keys\) or \(batch \* 2 heads, .*got \(4,\)"):
        layer(x, src_mask=torch.zeros(4, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"key padding mask has shape \(batch, keys\), got \(1, 3, 4\)"):
        layer(x, src_key_padding_mask=torch.zeros(1, 3, 4, dtype=torch.bool))
    with pytest.raises(TypeError, match=r"masks must be boolean or floating point, got torch.int64"):
        layer(x, src_mask=torch.zeros(4, 4, dtype=torch.int64))
