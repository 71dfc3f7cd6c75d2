"""The PyTorch deep MLP against its NumPy twin: forward, loss, every gradient, and twenty steps of SGD."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from reference_tools import TORCH_TOLERANCE, assert_close, buildable_schemes

from kilolayer import nn, reference

CASES = [(scheme, norm) for scheme in buildable_schemes() for norm in reference.NORMS]
SIZES = {"in_features": 12, "num_classes": 5, "width": 16, "num_blocks": 6}
TRAINING_TOLERANCE = 1e-9
NUM_STEPS = 20


def build_pair(scheme: str, norm: str) -> tuple[nn.DeepMLP, reference.DeepMLP]:
    """Twins with the same values; gains and biases are moved off 1 and 0, where mistakes could hide."""
    generator = torch.Generator().manual_seed(0)
    model = nn.build_deep_mlp(**SIZES, scheme=scheme, norm=norm, generator=generator).double()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    twin = reference.build_deep_mlp(**SIZES, scheme=scheme, norm=norm)
    twin.load_parameters({name: value.detach().numpy() for name, value in model.named_parameters()})
    return model, twin


def draw_batch(rng: np.random.Generator, batch: int = 32) -> tuple[np.ndarray, np.ndarray]:
    x = rng.normal(size=(batch, SIZES["in_features"]))
    return x, rng.integers(SIZES["num_classes"], size=batch)


@pytest.mark.parametrize(("scheme", "norm"), CASES)
def test_names_and_shapes_are_the_same(scheme: str, norm: str) -> None:
    model, twin = build_pair(scheme, norm)
    wanted = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    assert {name: array.shape for name, array in twin.named_parameters()} == wanted


@pytest.mark.parametrize(("scheme", "norm"), CASES)
def test_forward_loss_and_every_gradient(scheme: str, norm: str) -> None:
    model, twin = build_pair(scheme, norm)
    x, targets = draw_batch(np.random.default_rng(1))
    x_torch = torch.from_numpy(x).requires_grad_()
    logits_torch = model(x_torch)
    loss_torch = F.cross_entropy(logits_torch, torch.from_numpy(targets))
    loss_torch.backward()

    logits = twin.forward(x)
    loss, grad = reference.softmax_cross_entropy(logits, targets)
    grad_in = twin.backward(grad)

    assert loss == pytest.approx(loss_torch.item(), rel=TORCH_TOLERANCE)
    wanted = [("logits", logits_torch.detach().numpy())]
    assert_close([("logits", logits)], wanted, tolerance=TORCH_TOLERANCE)
    wanted = [("input", x_torch.grad.numpy())]
    wanted += [(name, parameter.grad.numpy()) for name, parameter in model.named_parameters()]
    assert_close([("input", grad_in), *twin.named_gradients()], wanted, tolerance=TORCH_TOLERANCE)


@pytest.mark.parametrize(("scheme", "norm"), CASES)
def test_twenty_steps_of_sgd(scheme: str, norm: str) -> None:
    model, twin = build_pair(scheme, norm)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rng = np.random.default_rng(2)
    losses, losses_torch = [], []
    for _ in range(NUM_STEPS):
        x, targets = draw_batch(rng)
        losses.append(reference.sgd_step(twin, x, targets, lr=0.01))
        optimizer.zero_grad()
        loss_torch = F.cross_entropy(model(torch.from_numpy(x)), torch.from_numpy(targets))
        loss_torch.backward()
        optimizer.step()
        losses_torch.append(loss_torch.item())
    assert np.ptp(losses) > 0
    np.testing.assert_allclose(losses, losses_torch, rtol=TRAINING_TOLERANCE)


@pytest.mark.parametrize("scheme", buildable_schemes())
def test_batch_norm_evaluates_alike_after_training(scheme: str) -> None:
    model, twin = build_pair(scheme, "batch")
    x, _ = draw_batch(np.random.default_rng(3))
    model(torch.from_numpy(x))
    twin.forward(x)
    model.eval()
    with torch.no_grad():
        wanted = model(torch.from_numpy(x)).numpy()
    got = twin.eval().forward(x)
    assert_close([("logits", got)], [("logits", wanted)], tolerance=TORCH_TOLERANCE)
