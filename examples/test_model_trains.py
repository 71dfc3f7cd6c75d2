"""A test in your own suite: the model you ship is one that learns. ``pytest examples/test_model_trains.py``"""

import torch
from torch import nn

import kilolayer as kl
from kilolayer.nn import build_deep_mlp


def build():
    """Afresh at each call: model, inputs, targets, loss function, optimizer."""
    torch.manual_seed(0)
    model = build_deep_mlp(scheme="deepnorm", num_blocks=24, width=32, in_features=16, num_classes=4)
    inputs = torch.randn(64, 16)
    targets = inputs[:, :4].argmax(-1)
    return model, inputs, targets, nn.functional.cross_entropy, torch.optim.AdamW(model.parameters(), lr=1e-3)


def test_the_network_can_be_trained():
    """Fails with the cause, where it starts and what to change."""
    kl.testing.assert_trainable(build)
