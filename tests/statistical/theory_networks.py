"""Random networks in plain NumPy, drawn from block specs, with a hand-written backward: what theory is held against."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from kilolayer.lab.data import load_data
from kilolayer.theory.block import Act, BlockSpec, HeadSpec, Linear, Norm, Operation

Array = np.ndarray


@dataclass
class Measured:
    """Standard deviation of the stream behind each block, and Frobenius norms ``(blocks, matrices)`` of dW."""

    stds: Array
    grads: Array


def digits_batch(num_samples: int, seed: int) -> tuple[Array, Array]:
    """Standardized scikit-learn digits: real images with real correlations. Shapes ``(samples, 64)``, ``(samples,)``."""
    digits = load_data("digits")
    rows = np.random.default_rng(seed).permutation(len(digits.x_train))[:num_samples]
    return digits.x_train[rows].astype(float), digits.y_train[rows]


def measure(
    blocks: tuple[BlockSpec, ...], head: HeadSpec, inputs: Array, labels: Array, rng: np.random.Generator
) -> Measured:
    """Draw a network, run one batch forward and backward."""
    stream = inputs @ rng.normal(0, math.sqrt(2 / inputs.shape[1]), (inputs.shape[1], blocks[0].width))
    runs, stds = [], []
    for block in blocks:
        branch = Run(block.branch, stream, rng)
        total = block.branch_scale * branch.out + (block.skip_scale * stream if block.has_skip else 0)
        post = Run((Norm(block.norm_kind),) if block.has_post_norm else (), total, rng)
        stream = post.out
        runs.append((block, branch, post))
        stds.append(stream.std())
    top = Run(head.operations, stream, rng)
    grad = top.backward(cross_entropy_grad(top.out, labels))
    norms = []
    for block, branch, post in reversed(runs):
        grad = post.backward(grad)
        below = branch.backward(block.branch_scale * grad)
        grad = below + (block.skip_scale * grad if block.has_skip else 0)
        norms.append([np.linalg.norm(one) for one in branch.weight_grads])
    return Measured(np.array(stds), np.array(norms[::-1]))


def cross_entropy_grad(logits: Array, labels: Array) -> Array:
    """Gradient of the mean cross-entropy."""
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    return (shifted / shifted.sum(axis=1, keepdims=True) - np.eye(logits.shape[1])[labels]) / len(labels)


class Run:
    """Operations applied to a batch, with what their backward needs."""

    def __init__(self, operations: tuple[Operation, ...], inputs: Array, rng: np.random.Generator):
        self.tape: list[tuple[Operation, Array, Array | None]] = []
        self.weight_grads: list[Array] = []
        self.out = inputs
        for operation in operations:
            weight = None
            if isinstance(operation, Linear):
                weight = rng.normal(0, operation.weight_std, (operation.fan_in, operation.fan_out))
            self.tape.append((operation, self.out, weight))
            self.out = forward(operation, self.out, weight)

    def backward(self, grad: Array) -> Array:
        """Gradient at the input; ``weight_grads`` in forward order."""
        for operation, inputs, weight in reversed(self.tape):
            if weight is not None:
                self.weight_grads.insert(0, inputs.T @ grad)
                grad = grad @ weight.T
            elif isinstance(operation, Act):
                grad = grad * (inputs > 0 if operation.activation == "relu" else 1)
            else:
                assert isinstance(operation, Norm)
                grad = norm_backward(operation, inputs, grad)
        return grad


def forward(operation: Operation, inputs: Array, weight: Array | None) -> Array:
    if weight is not None:
        return inputs @ weight
    if isinstance(operation, Act):
        return np.maximum(inputs, 0) if operation.activation == "relu" else inputs
    assert isinstance(operation, Norm)
    axis = 0 if operation.kind == "batch" else 1
    centered = inputs if operation.kind == "rms" else inputs - inputs.mean(axis=axis, keepdims=True)
    return operation.scale * centered / np.sqrt((centered**2).mean(axis=axis, keepdims=True))


def norm_backward(operation: Norm, inputs: Array, grad: Array) -> Array:
    axis = 0 if operation.kind == "batch" else 1
    centered = inputs if operation.kind == "rms" else inputs - inputs.mean(axis=axis, keepdims=True)
    rms = np.sqrt((centered**2).mean(axis=axis, keepdims=True))
    unit = centered / rms
    grad = operation.scale * grad
    grad = grad - unit * (grad * unit).mean(axis=axis, keepdims=True)
    if operation.kind != "rms":
        grad = grad - grad.mean(axis=axis, keepdims=True)
    return grad / rms
