"""Gradients of deep Transformers at initialisation: even under DeepNorm, gone under post-LN."""

import pytest
import torch
import torch.nn.functional as F

from kilolayer import nn as kn
from kilolayer.schemes import get_scheme

LAYERS = 100


def gradients(scheme, stack):
    config = kn.TransformerConfig(
        vocab_size=40, width=16, num_heads=2, encoder_layers=LAYERS, decoder_layers=LAYERS, scheme=scheme
    )
    model = kn.Seq2Seq(config, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1)
    source, target, labels = (torch.randint(40, (4, 8), generator=generator) for _ in range(3))
    F.cross_entropy(model(source, target).flatten(0, 1), labels.flatten()).backward()
    return [layer.linear1.weight.grad.norm().item() for layer in getattr(model, stack).layers]


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_deepnorm_spreads_gradients_evenly(stack):
    norms = gradients("deepnorm", stack)
    assert max(norms) < 4 * min(norms)


@pytest.mark.parametrize(("stack", "left"), [("encoder", 0.1), ("decoder", 1e-6)])
def test_post_ln_loses_them_on_the_way_down(stack, left):
    norms = gradients("post-ln", stack)
    assert norms[0] < left * norms[-1]
    assert norms[-1] > 1e-3


@pytest.mark.parametrize("scheme", ["deepnorm", "post-ln", "keel"])
def test_a_norm_behind_the_sum_keeps_the_stream_at_one(scheme):
    config = kn.TransformerConfig(vocab_size=40, width=32, num_heads=2, decoder_layers=LAYERS, scheme=scheme)
    model = kn.CausalLM(config, generator=torch.Generator().manual_seed(0))
    sizes = []
    for layer in model.decoder.layers:
        layer.register_forward_hook(lambda module, inputs, out: sizes.append(out.square().mean().sqrt().item()))
    model(torch.randint(40, (4, 8), generator=torch.Generator().manual_seed(1)))
    assert len(sizes) == LAYERS
    assert sizes == pytest.approx([1.0] * LAYERS, rel=0.01)


def test_the_stream_of_pre_ln_grows_as_the_square_root_of_depth():
    config = kn.TransformerConfig(
        vocab_size=40, width=64, num_heads=2, decoder_layers=LAYERS, scheme=get_scheme("pre-ln"), activation="relu"
    )
    model = kn.CausalLM(config, generator=torch.Generator().manual_seed(0))
    variances = []
    for layer in model.decoder.layers:
        layer.register_forward_hook(lambda module, inputs, out: variances.append(out.var().item()))
    model(torch.randint(40, (4, 16), generator=torch.Generator().manual_seed(1)))
    assert variances[79] / variances[19] == pytest.approx(4, rel=0.3)
