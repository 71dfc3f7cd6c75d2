"""A Jacobian-vector product equals a finite difference, and brings no warning along."""

import torch
from torch import nn

from kilolayer.lab.jacobian_vector import push_forward


def test_push_forward_is_a_directional_derivative():
    generator = torch.Generator().manual_seed(0)
    x, direction = torch.randn(2, 3, 5, generator=generator, dtype=torch.float64)
    module = nn.Sequential(nn.LayerNorm(5, dtype=torch.float64), nn.Tanh())
    out, pushed = push_forward(module, x, direction)
    step = 1e-6
    difference = (module(x + step * direction) - module(x - step * direction)) / (2 * step)
    torch.testing.assert_close(out, module(x))
    torch.testing.assert_close(pushed, difference, rtol=1e-6, atol=1e-8)
