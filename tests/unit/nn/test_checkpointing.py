import math

import pytest
import torch

from kilolayer import nn as kn
from kilolayer.nn.checkpointing import segment_length


@pytest.mark.parametrize("every", [1, 2, 3, 100, "auto"])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("scheme", ["deepnorm", "pre-ln"])
def test_gradients_are_those_without_checkpoints(every, dropout, scheme):
    template = kn.TransformerEncoderLayer(8, 2, 16, dropout, "gelu", scheme=scheme)
    plain, checkpointed = kn.TransformerEncoder(template, 5), kn.TransformerEncoder(template, 5, checkpoint_every=every)
    checkpointed.load_state_dict(plain.state_dict())
    x = torch.randn(4, 3, 8, generator=torch.Generator().manual_seed(2))
    for stack in (plain, checkpointed):
        torch.manual_seed(1)
        stack(x).mul(torch.linspace(-1, 1, 8)).sum().backward()
    for ours, reference in zip(checkpointed.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, reference.grad)
    assert plain.layers[0].linear1.weight.grad.abs().max() > 0


def test_decoders_and_models_take_it_too():
    torch.manual_seed(0)
    models = [kn.Transformer(8, 2, 3, 3, 16, 0.0, scheme="deepnorm", checkpoint_every=every) for every in (None, 2)]
    models[1].load_state_dict(models[0].state_dict())
    source, target = torch.randn(5, 2, 8), torch.randn(4, 2, 8)
    for model in models:
        model(source, target, tgt_is_causal=True).mul(torch.linspace(-1, 1, 8)).sum().backward()
    for ours, reference in zip(models[1].parameters(), models[0].parameters(), strict=True):
        torch.testing.assert_close(ours.grad, reference.grad)


def test_the_automatic_length_keeps_least():
    for num_layers in (1, 12, 100, 1000):

        def kept(length, num_layers=num_layers):
            return math.ceil(num_layers / length) + 11 * length

        best = min(kept(length) for length in range(1, num_layers + 1))
        assert kept(segment_length(num_layers, "auto")) <= 1.1 * best


@pytest.mark.parametrize("every", [0, -1, 2.5, True, "often"])
def test_bad_segments(every):
    template = kn.TransformerEncoderLayer(8, 2, 16)
    with pytest.raises(ValueError, match=rf"checkpoint_every must be None, 'auto' or a number of layers.*{every}"):
        kn.TransformerEncoder(template, 2, checkpoint_every=every)
