"""The measured networks: the right parts, the right values, nothing but one forward and one backward pass."""

import math

import numpy as np
import pytest
import torch

from kilolayer.lab.scheme_stream import build_stack, measure_scheme
from kilolayer.nn import BridgedLayer, ChainBlock, Residual
from kilolayer.schemes import SCHEMES
from kilolayer.theory import NetworkSpec


def blocks_of(stack):
    return [module for module in stack.modules() if isinstance(module, (ChainBlock, Residual))]


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
@pytest.mark.parametrize("norm", ["layer", "rms", "batch"])
def test_every_scheme_is_measured_at_every_branch(scheme, norm):
    network = NetworkSpec(scheme=scheme, num_layers=3, branches_per_layer=2, width=16, norm=norm)
    measured = measure_scheme(network, batch_size=8, seed=0)
    assert measured.stream.shape == measured.gradient.shape == (7,)
    assert np.isfinite(measured.stream).all()
    assert (measured.stream > 0).all()
    assert (measured.gradient > 0).all()
    assert measured.gradient[-1] == 1
    assert measured.largest >= measured.stream.max()


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "tanh", "sigmoid", "identity"])
def test_stream_and_gradient_of_a_residual_stack_by_hand(activation):
    network = NetworkSpec(scheme="residual", num_layers=2, width=8, activation=activation)
    measured = measure_scheme(network, batch_size=4, seed=3)
    generator = torch.Generator().manual_seed(3)
    stack = build_stack(network, generator=generator)
    x = torch.randn(4, 8, dtype=torch.float64, generator=generator, requires_grad=True)
    top = torch.randn(4, 8, dtype=torch.float64, generator=generator)
    phi = {"identity": lambda h: h}.get(activation) or getattr(torch.nn.functional, activation)
    h, stream = x, [x]
    for block in stack:
        h = h + phi(h @ block.branch.linear1.weight.T) @ block.branch.linear2.weight.T
        stream.append(h)
    gradients = [*torch.autograd.grad(h, stream[:-1], top), top]
    for found, tensors in ((measured.stream, stream), (measured.gradient, gradients)):
        sizes = [tensor.detach().square().mean().sqrt().item() for tensor in tensors]
        expected = np.array(sizes) / (sizes[-1] if found is measured.gradient else 1)
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_chains_are_read_in_front_of_their_activation():
    network = NetworkSpec(scheme="norm-only", num_layers=4, width=16)
    np.testing.assert_allclose(measure_scheme(network, batch_size=8, seed=0).stream[1:], 1, rtol=1e-3)


@pytest.mark.parametrize("init", ["kaiming", "lecun", "xavier", "fixed-0.02", "torch-default", "orthogonal"])
def test_values_follow_init_times_gain(init):
    network = NetworkSpec(scheme="deepnorm", num_layers=2, width=128, init=init)
    for scales, block in zip(network.scales(), blocks_of(build_stack(network)), strict=True):
        for number, role in ((1, "feedforward_in"), (2, "feedforward_out")):
            weight = getattr(block.branch, f"linear{number}").weight.detach()
            expected = scales.gain(role) * network.weight_std(before_activation=number == 1)
            assert weight.std().item() == pytest.approx(expected, rel=0.03)
            if init == "orthogonal":
                gram = weight @ weight.T / (128 * expected**2)
                torch.testing.assert_close(gram, torch.eye(128, dtype=torch.float64), atol=1e-5, rtol=0)
        assert not block.branch.linear1.bias.any()
        assert (block.post_norm.weight == 1).all()


def test_trained_scales_start_where_the_scheme_says():
    layerscale = build_stack(NetworkSpec(scheme="layerscale", num_layers=4, width=8))
    assert all((block.branch_scale == 0.1).all() for block in blocks_of(layerscale))
    rezero = build_stack(NetworkSpec(scheme="rezero", num_layers=2, width=8))
    assert all((block.branch_scale == 0).all() for block in blocks_of(rezero))


def test_b2t_has_its_bridges_where_layers_have_two_branches():
    stack = build_stack(NetworkSpec(scheme="b2t", num_layers=3, branches_per_layer=2, width=8))
    assert [type(layer) for layer in stack] == [BridgedLayer] * 3
    assert [layer.layer_skip_scale for layer in stack] == [1.0] * 3
    assert not any(
        isinstance(layer, BridgedLayer) for layer in build_stack(NetworkSpec(scheme="b2t", num_layers=3, width=8))
    )


def test_admin_is_measured_with_the_profile_of_its_own_draw():
    network = NetworkSpec(scheme="admin", num_layers=30, width=64)
    measured = measure_scheme(network, batch_size=16, seed=0)
    # At omega = 1 throughout, post-LN, gradients would wander three times as far.
    assert abs(math.log(measured.gradient[0])) < 0.5
    assert measured.stream[-1] == pytest.approx(1, abs=1e-3)


def test_a_seed_is_a_draw_and_the_global_generator_is_left_alone():
    network = NetworkSpec(scheme="pre-ln", num_layers=2, width=8)
    before = torch.get_rng_state()
    one, same, other = (measure_scheme(network, batch_size=4, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    np.testing.assert_array_equal(one.stream, same.stream)
    np.testing.assert_array_equal(one.gradient, same.gradient)
    assert not np.allclose(one.stream, other.stream)
