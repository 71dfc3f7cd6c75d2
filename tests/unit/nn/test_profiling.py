import pytest
import torch
from torch import nn

from kilolayer import nn as kn
from kilolayer.schemes import admin_skip_scales, get_scheme

SIZES = {"vocab_size": 40, "width": 32, "num_heads": 4}


def seq2seq(scheme, seed=0):
    config = kn.TransformerConfig(**SIZES, encoder_layers=3, decoder_layers=2, scheme=scheme, dropout=0.2)
    return kn.Seq2Seq(config, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def tokens():
    return torch.randint(40, (4, 9), generator=torch.Generator().manual_seed(1))


def test_variances_are_those_of_the_branches(tokens):
    model = seq2seq("post-ln")
    profile = kn.profile_branches(model, tokens, tokens)
    assert {stack: len(variances) for stack, variances in profile.items()} == {"encoder": 6, "decoder": 6}
    model.eval()
    x = model.embedding(tokens)
    attended = model.encoder.layers[0].self_attn(x)
    assert profile["encoder"][0] == pytest.approx(attended.var().item(), rel=1e-5)
    fed = model.encoder.layers[0].feed_forward(model.encoder.layers[0].norm1(x + attended))
    assert profile["encoder"][1] == pytest.approx(fed.var().item(), rel=1e-5)


def test_admin_from_profile_to_model(tokens):
    profile = kn.profile_branches(seq2seq("post-ln"), tokens, tokens)
    model = seq2seq(get_scheme("admin").with_profile(profile))
    expected = admin_skip_scales(profile["decoder"])
    layers = model.decoder.layers
    scales = [getattr(layer, f"skip_scale{number}") for layer in layers for number in (1, 2, 3)]
    assert [scale.mean().item() for scale in scales] == pytest.approx(expected)
    assert all(scale.shape == (32,) for scale in scales)
    model(tokens, tokens).square().mean().backward()
    assert all(scale.grad.abs().max() > 0 for scale in scales)


def test_the_model_is_left_as_it_was(tokens):
    model = seq2seq("post-ln")
    model.encoder.layers[1].eval()
    modes = [module.training for module in model.modules()]
    random_state = torch.get_rng_state()
    kn.profile_branches(model, tokens, tokens)
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), random_state)
    assert not any(module._forward_hooks for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_models_that_cannot_be_profiled(tokens):
    with pytest.raises(ValueError, match=r"Linear has none of kilolayer's Transformer layers"):
        kn.profile_branches(nn.Linear(2, 2), torch.zeros(1, 2))
    stack = kn.TransformerEncoder(kn.TransformerEncoderLayer(8, 2, 16), 2)
    stack.layers.append(stack.layers[0])
    with pytest.raises(ValueError, match=r"a branch of layer 0 of the encoder ran 2 times instead of once"):
        kn.profile_branches(stack, torch.randn(3, 2, 8))
    assert not any(module._forward_hooks for module in stack.modules())
