"""Each layer of the reference against the module of torch.nn that it stands for, in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from reference_tools import TORCH_TOLERANCE, assert_close, randomize
from torch import nn

from kilolayer.reference import (
    SGD,
    BatchNorm,
    Layer,
    LayerNorm,
    Linear,
    ReLU,
    RMSNorm,
    Sequential,
    softmax_cross_entropy,
)

PAIRS = {
    "linear": (lambda width: Linear(width, 9), lambda width: nn.Linear(width, 9)),
    "relu": (lambda width: ReLU(), lambda width: nn.ReLU()),
    "layer-norm": (LayerNorm, lambda width: nn.LayerNorm(width, eps=1e-5)),
    "rms-norm": (RMSNorm, lambda width: nn.RMSNorm(width, eps=1e-5)),
    "batch-norm": (BatchNorm, nn.BatchNorm1d),
    "sequential": (
        lambda width: Sequential(Linear(width, 6), LayerNorm(6), ReLU(), Linear(6, 2)),
        lambda width: nn.Sequential(nn.Linear(width, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 2)),
    ),
}


def copy_into(module: nn.Module, layer: Layer) -> None:
    values = dict(layer.named_parameters())
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(torch.from_numpy(values[name]))


def forward_both(layer: Layer, module: nn.Module, x: np.ndarray, rng: np.random.Generator) -> None:
    """Run both forward and backward; compare outputs and every gradient."""
    x_torch = torch.from_numpy(x).requires_grad_()
    y, y_torch = layer.forward(x), module(x_torch)
    grad_out = rng.normal(size=y.shape)
    grad_in = layer.backward(grad_out)
    y_torch.backward(torch.from_numpy(grad_out))
    got = {"output": y, "input gradient": grad_in, **dict(layer.named_gradients())}
    wanted = {"output": y_torch.detach().numpy(), "input gradient": x_torch.grad.numpy()}
    wanted.update({name: parameter.grad.numpy() for name, parameter in module.named_parameters()})
    assert_close(got.items(), wanted.items(), tolerance=TORCH_TOLERANCE)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize(("batch", "width"), [(2, 3), (7, 5), (64, 33)])
@pytest.mark.parametrize("name", PAIRS)
def test_forward_and_every_gradient(name: str, batch: int, width: int, training: bool) -> None:
    rng = np.random.default_rng(batch)
    layer, module = PAIRS[name][0](width), PAIRS[name][1](width).double()
    layer.train(training)
    module.train(training)
    randomize(layer, rng)
    copy_into(module, layer)
    forward_both(layer, module, 3 + 2 * rng.normal(size=(batch, width)), rng)


def test_running_statistics_follow_torch() -> None:
    rng = np.random.default_rng(0)
    layer, module = BatchNorm(5), nn.BatchNorm1d(5).double()
    for batch in (2, 3, 17):
        x = 4 + 3 * rng.normal(size=(batch, 5))
        layer.forward(x)
        module(torch.from_numpy(x))
    wanted = [(name, buffer.numpy()) for name, buffer in module.named_buffers() if name.startswith("running")]
    assert_close(layer.named_buffers(), wanted, tolerance=TORCH_TOLERANCE)
    layer.eval()
    module.eval()
    forward_both(layer, module, rng.normal(size=(4, 5)), rng)


@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_cross_entropy(scale: float) -> None:
    rng = np.random.default_rng(0)
    logits, targets = scale * rng.normal(size=(11, 4)), rng.integers(4, size=11)
    logits_torch = torch.from_numpy(logits).requires_grad_()
    loss, grad = softmax_cross_entropy(logits, targets)
    loss_torch = F.cross_entropy(logits_torch, torch.from_numpy(targets))
    loss_torch.backward()
    assert loss == pytest.approx(loss_torch.item(), rel=TORCH_TOLERANCE)
    assert_close([("logits", grad)], [("logits", logits_torch.grad.numpy())], tolerance=TORCH_TOLERANCE)


def test_relu_passes_what_is_not_finite_as_torch_does() -> None:
    x = np.array([[np.nan, -1.0, 1.0, -1.0, 0.0]])
    grad_out = np.array([[2.0, np.inf, np.inf, np.nan, np.inf]])
    x_torch = torch.from_numpy(x).requires_grad_()
    layer = ReLU()
    y, y_torch = layer.forward(x), torch.relu(x_torch)
    y_torch.backward(torch.from_numpy(grad_out))
    np.testing.assert_array_equal(y, y_torch.detach().numpy())
    np.testing.assert_array_equal(layer.backward(grad_out), x_torch.grad.numpy())


def test_sgd_step() -> None:
    rng = np.random.default_rng(0)
    layer, module = Linear(4, 3), nn.Linear(4, 3).double()
    randomize(layer, rng)
    copy_into(module, layer)
    forward_both(layer, module, rng.normal(size=(6, 4)), rng)
    SGD(layer, lr=0.3).step()
    torch.optim.SGD(module.parameters(), lr=0.3).step()
    wanted = [(name, parameter.detach().numpy()) for name, parameter in module.named_parameters()]
    assert_close(layer.named_parameters(), wanted, tolerance=TORCH_TOLERANCE)
