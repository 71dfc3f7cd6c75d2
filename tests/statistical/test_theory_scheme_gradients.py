"""The gradient's predicted median and scatter against several hundred narrow networks, where 1/n counts most."""

import math

import numpy as np
import pytest

from kilolayer.theory import NetworkSpec, predict_scheme

WIDTH, BRANCHES, BATCH, DRAWS = 32, 24, 8, 384
CHUNK = 96


def normalize(x):
    centered = x - x.mean(-1, keepdims=True)
    size = np.sqrt((centered**2).mean(-1, keepdims=True))
    return centered / size, size


def back_through_norm(grad, y, size):
    return (grad - grad.mean(-1, keepdims=True) - y * (grad * y).mean(-1, keepdims=True)) / size


def gradient_norms(network, rng):
    """RMS of the gradient at every position over that at the top. Shape: (chunk, branches + 1)."""
    x, kept = rng.normal(size=(CHUNK, BATCH, WIDTH)), []
    for one in network.scales():
        stds = one.gain("feedforward_in") * math.sqrt(2 / WIDTH), one.gain("feedforward_out") / math.sqrt(WIDTH)
        first, last = (rng.normal(0, std, (CHUNK, WIDTH, WIDTH)) for std in stds)
        slots = one.norm_slots
        read, pre = normalize(x) if "pre" in slots else (x, None)
        before = read @ first
        hidden, inner = normalize(np.maximum(before, 0)) if "inner" in slots else (np.maximum(before, 0), None)
        x = one.skip_scale * x + hidden @ last
        x, post = normalize(x) if "post" in slots else (x, None)
        kept.append((one.skip_scale, first, last, read, pre, before > 0, hidden, inner, x, post))
    grad = rng.normal(size=x.shape)
    sizes = [(grad**2).mean((1, 2))]
    for skip_scale, first, last, read, pre, on, hidden, inner, out, post in kept[::-1]:
        total = grad if post is None else back_through_norm(grad, out, post)
        inside = total @ last.swapaxes(1, 2)
        inside = inside if inner is None else back_through_norm(inside, hidden, inner)
        inside = (inside * on) @ first.swapaxes(1, 2)
        grad = skip_scale * total + (inside if pre is None else back_through_norm(inside, read, pre))
        sizes.append((grad**2).mean((1, 2)))
    return np.sqrt(np.array(sizes[::-1]).T / sizes[0][:, None])


@pytest.mark.parametrize(
    ("scheme", "bias", "spread"),
    # At width 32 terms beyond 1/n show in sub-LN, whose branches are large; at width 256 they are a hundredth of that.
    [
        ("pre-ln", 0.02, 0.15),
        ("sub-ln", 0.05, 0.2),
        ("post-ln", 0.05, 0.2),
        ("deepnorm", 0.006, 0.25),
        ("keel", 0.006, 0.3),
    ],
)
def test_median_and_scatter_at_every_branch(scheme, bias, spread):
    network = NetworkSpec(scheme=scheme, num_layers=BRANCHES, width=WIDTH)
    band = predict_scheme(network, batch_size=BATCH).gradient
    rng = np.random.default_rng(0)
    logs = np.log(np.concatenate([gradient_norms(network, rng) for _ in range(DRAWS // CHUNK)]))
    errors, stds = np.median(logs, axis=0) - band.log_median, logs.std(axis=0)
    # The median of k normal draws has standard error 1.25 sd / sqrt(k).
    assert (np.abs(errors) < bias + 3 * 1.25 * stds / math.sqrt(DRAWS)).all()
    inside = slice(0, -2)
    # The share of a gradient along the direction that a norm removes scatters too: 1/n in ln RMS, beyond the bands.
    rtol = spread + 3 / math.sqrt(2 * DRAWS)
    np.testing.assert_allclose(band.log_std[inside], stds[inside], rtol=rtol, atol=0.3 / WIDTH)
