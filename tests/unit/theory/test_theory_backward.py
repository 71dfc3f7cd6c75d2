"""Gradient kernels through single operations and blocks, against drawn layers."""

import math

import numpy as np
import pytest

from kilolayer.theory import BlockSpec, uniform_gram
from kilolayer.theory.backward import Flow, block_backward, branch_backward, head_flow, norm_backward
from kilolayer.theory.block import Linear, Norm
from kilolayer.theory.forward import forward_blocks, run_branch
from kilolayer.theory.log_scaled import LogScaled
from kilolayer.theory.pairs import SamplePairs
from kilolayer.theory.signal import apply, start_signal

N, SAMPLES = 64, 4
PAIRS = SamplePairs(SAMPLES)
ONES = np.ones(len(PAIRS.rows))


def stream_gram():
    rows = np.random.default_rng(0).normal(size=(SAMPLES, 6))
    return rows @ rows.T / 6


def trace_of(block):
    return next(iter(forward_blocks([block], stream_gram(), PAIRS)))


def full(kernel):
    return PAIRS.unpack(kernel.values) * math.exp(kernel.log_scale)


def draw_backward(block, grads, draws, seed=1):
    """Mean of <delta_i, delta_j> at x, and of <dW, dW> split by sample pairs, over fresh weights and streams.

    ``grads``: fixed gradients at y, shape (samples, units).
    """
    rng = np.random.default_rng(seed)
    root = np.linalg.cholesky(stream_gram())
    kernel, squares = np.zeros((SAMPLES, SAMPLES)), np.zeros(len(block.weight_stds))
    for _ in range(draws):
        x = root @ rng.standard_normal((SAMPLES, N))
        first, last = (rng.normal(0, std, (N, N)) for std in block.weight_stds)
        pre = x @ first
        hidden = np.maximum(pre, 0)
        at_hidden = block.branch_scale * grads @ last.T * (pre > 0)
        below = at_hidden @ first.T + block.skip_scale * grads
        kernel += below @ below.T / draws
        squares += (
            np.array([((x.T @ at_hidden) ** 2).sum(), ((hidden.T @ (block.branch_scale * grads)) ** 2).sum()]) / draws
        )
    return kernel, squares


@pytest.mark.parametrize(("skip_scale", "branch_scale"), [(1.0, 1.0), (2.0, 0.7)])
def test_residual_block_with_independent_gradients(skip_scale, branch_scale):
    """Gradients drawn apart from the weights: mean field is exact, nothing is constrained."""
    block = BlockSpec(N, (math.sqrt(2 / N), math.sqrt(1 / N)), skip_scale=skip_scale, branch_scale=branch_scale)
    mixing = np.random.default_rng(5).normal(size=(SAMPLES, SAMPLES))
    grads = mixing @ np.linalg.qr(np.random.default_rng(6).normal(size=(N, SAMPLES)))[0].T
    arriving = Flow(LogScaled(PAIRS.pack(grads @ grads.T)))
    below, kernels, _ = block_backward(trace_of(block), arriving, PAIRS, homogeneous=False)
    measured, squares = draw_backward(block, grads, draws=1500)
    np.testing.assert_allclose(full(below.direct), measured, atol=0.03 * measured.max())
    predicted = [full(kernel.direct).sum() for kernel in kernels]
    # Relative spread of a squared norm is about 0.3 here: standard error 0.008 at 1,500 draws.
    np.testing.assert_allclose(predicted, squares, rtol=0.035)


def test_layer_norm_divides_by_each_samples_rms():
    signal = start_signal(stream_gram(), N, PAIRS)
    _, step = apply(Norm("layer", scale=3.0), signal, PAIRS)
    below = norm_backward(step, Flow(LogScaled(ONES)), PAIRS)
    rms = np.sqrt(np.diag(stream_gram()))
    np.testing.assert_allclose(full(below.direct), 9 / np.outer(rms, rms), rtol=1e-6)


def test_aligned_gradients_keep_their_product_with_the_signal():
    """<delta_i, h_i> = a_i at every tensor of a homogeneous network: the aligned kernel carries at least that part.

    With <delta, h> = 1 the smallest possible |delta|^2 is 1 / |h|^2.
    """
    chain = [BlockSpec(N, (math.sqrt(2 / N),), has_skip=False, input_activated=index > 0) for index in range(5)]
    traces = list(forward_blocks(chain, stream_gram(), PAIRS))
    _, _, top = run_branch((Linear(N**-0.5, N, 10),), traces[-1].out, PAIRS)
    flow = branch_backward(top, head_flow(len(ONES), homogeneous=True), PAIRS, share=1.0, is_constrained=True).flow
    for trace in reversed(traces):
        own = PAIRS.diagonal(trace.out.gram) * math.exp(trace.out.log_scale) * N
        aligned = np.diag(full(flow.aligned))
        assert (aligned >= 0.999 / own).all()
        flow, _, _ = block_backward(trace, flow, PAIRS, homogeneous=True)


def test_gradients_that_follow_the_logits_are_larger_than_mean_field():
    """A chain whose loss has gradient e = z, so that a = |z|^2: |delta|^2 at the input over draws of the weights."""
    width, num_blocks, outputs, draws = 128, 8, 8, 600
    pairs = SamplePairs(2)
    stds = (math.sqrt(2 / width),)
    chain = [BlockSpec(width, stds, has_skip=False, input_activated=index > 0) for index in range(num_blocks)]
    traces = list(forward_blocks(chain, uniform_gram(2, cosine=1.0), pairs))
    _, _, top = run_branch((Linear(width**-0.5, width, outputs),), traces[-1].out, pairs)
    flow = branch_backward(top, head_flow(3, homogeneous=True), pairs, share=1.0, is_constrained=True).flow
    for trace in reversed(traces):
        flow, _, _ = block_backward(trace, flow, pairs, homogeneous=True)
    rng = np.random.default_rng(0)
    ratios, energies = zip(*[logit_gradient(chain, outputs, rng) for _ in range(draws)], strict=True)
    direct, aligned = (float(kernel.values[0]) * math.exp(kernel.log_scale) for kernel in (flow.direct, flow.aligned))
    standard_error = np.std(ratios) / math.sqrt(draws)
    predicted = direct + aligned * np.mean(energies)
    assert abs(np.mean(ratios) - predicted) < 0.05 * predicted + 3 * standard_error
    assert np.mean(ratios) > 1.3 * direct


def logit_gradient(chain, outputs, rng):
    """``|delta|^2 / |z|^2`` at the input for e = z, and ``|z|^2``, of one drawn chain."""
    width = chain[0].width
    tensors, weights = [rng.standard_normal(width)], []
    for index, block in enumerate(chain):
        weights.append(rng.normal(0, block.weight_stds[0], (width, width)))
        tensors.append((np.maximum(tensors[-1], 0) if index else tensors[-1]) @ weights[-1])
    head = rng.normal(0, width**-0.5, (width, outputs))
    z = tensors[-1] @ head
    grad = head @ z
    for index in range(len(chain) - 1, -1, -1):
        grad = weights[index] @ grad
        if index:
            grad = grad * (tensors[index] > 0)
    return (grad**2).sum() / (z**2).sum(), (z**2).sum()


def test_scatter_of_a_chain_block_on_the_way_back():
    """5/n for one direction, 1/n of it common to all and shared with the forward pass."""
    block = BlockSpec(N, (math.sqrt(2 / N),), has_skip=False, input_activated=True)
    trace = next(iter(forward_blocks([block], uniform_gram(SAMPLES, cosine=1.0), PAIRS)))
    _, _, scatter = block_backward(trace, head_flow(len(ONES), homogeneous=True), PAIRS, homogeneous=True)
    assert scatter.directed == pytest.approx(4 / N)
    assert scatter.common == pytest.approx(1 / N)
    assert scatter.shared == pytest.approx(1 / N)
    assert scatter.drift == 0


def test_scatter_of_a_post_norm_block():
    """With branch gain and skip alike, r = 1/2: 10/4n directed; 9/4n - 1/2n ... common through the norm's RMS."""
    block = BlockSpec(N, (math.sqrt(2 / N), math.sqrt(1 / N)), norm_placement="post")
    trace = next(iter(forward_blocks([block], uniform_gram(SAMPLES, cosine=1.0), PAIRS)))
    _, _, scatter = block_backward(trace, Flow(LogScaled(ONES)), PAIRS, homogeneous=False)
    assert scatter.directed == pytest.approx((6 / 4 + 1) / N)
    assert scatter.common == pytest.approx((11 / 4 - 1 / 4) / N)
    assert scatter.drift == pytest.approx((11 / 4 - 1 / 4) / N)


def test_a_zero_branch_passes_the_gradient_through_the_skip():
    block = BlockSpec(N, (math.sqrt(2 / N), 0.0))
    below, kernels, _ = block_backward(trace_of(block), Flow(LogScaled(ONES)), PAIRS, homogeneous=False)
    np.testing.assert_allclose(full(below.direct), 1)
    assert not full(kernels[0].direct).any()
    assert full(kernels[1].direct).any()
