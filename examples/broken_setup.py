"""A set-up for ``kilolayer check examples/broken_setup.py:build``: its loss falls a little, and then stays."""

import torch
from torch import nn


class Residual(nn.Module):
    """Post-norm, as in the first Transformers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The norm stands on the stream itself."""
        return self.norm(x + self.branch(x))


def build():
    """Afresh at each call: model, inputs, targets, loss function, optimizer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), *(Residual(64) for _ in range(48)), nn.Linear(64, 5))
    inputs = torch.randn(128, 20)
    targets = inputs[:, :5].argmax(-1)
    return model, inputs, targets, nn.functional.cross_entropy, torch.optim.AdamW(model.parameters(), lr=3e-3)
