"""Softmax cross-entropy, SGD and one training step in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kilolayer.reference.layer import Array, Layer

Labels = NDArray[np.integer[Any]]


@np.errstate(over="ignore", invalid="ignore")
def softmax_cross_entropy(logits: Array, targets: Labels) -> tuple[float, Array]:
    """Mean cross-entropy of softmax(logits) against class labels, and its gradient.

    ``loss = mean(log(sum(exp(z))) - z[target])``, ``dL/dz = (softmax(z) - onehot(target)) / batch``. Logits
    that are not finite give a loss that is not finite, in silence: divergence is a result here.

    Args:
        logits: ``z``.
        targets: class labels in ``0..num_classes - 1``.

    Shape:
        - logits and gradient: ``(batch, num_classes)``
        - targets: ``(batch,)``

    Returns:
        the loss in nats, and the gradient.

    Raises:
        ValueError: shapes that do not fit, or a label out of range.

    Examples:
        >>> import numpy as np
        >>> loss, grad = softmax_cross_entropy(np.zeros((1, 2)), np.array([0]))
        >>> round(loss, 4), grad.tolist()
        (0.6931, [[-0.5, 0.5]])
    """
    _check_targets(logits, targets)
    rows = np.arange(len(targets))
    shifted = logits - logits.max(axis=1, keepdims=True)
    grad = np.exp(shifted)
    total = grad.sum(axis=1, keepdims=True)
    loss = float(np.mean(np.log(total[:, 0]) - shifted[rows, targets]))
    grad /= total
    grad[rows, targets] -= 1
    grad /= len(targets)
    return loss, grad


def _check_targets(logits: Array, targets: Labels) -> None:
    if logits.ndim != 2 or targets.shape != logits.shape[:1]:
        raise ValueError(
            f"logits (batch, num_classes) and targets (batch,) wanted, got {logits.shape} and {targets.shape}"
        )
    num_classes = logits.shape[1]
    if len(targets) == 0:
        raise ValueError("the mean loss of an empty batch is undefined; give at least one sample")
    if targets.min() < 0 or targets.max() >= num_classes:
        raise ValueError(
            f"labels must lie in 0..{num_classes - 1}, got {targets.min()}..{targets.max()}: "
            "is the head as wide as there are classes?"
        )


class SGD:
    """Plain gradient descent: ``parameter -= lr * gradient``, in place.

    Args:
        model: the layer whose parameters are moved.
        lr: learning rate.

    Raises:
        ValueError: a learning rate below 0 or not a number.
    """

    def __init__(self, model: Layer, *, lr: float) -> None:
        if not lr >= 0:
            raise ValueError(f"lr must be >= 0, got {lr!r}")
        self.model = model
        self.lr = float(lr)

    @np.errstate(over="ignore", invalid="ignore")
    def step(self) -> None:
        """Move every parameter against the gradient of the last backward.

        Raises:
            RuntimeError: a parameter has no gradient yet.
        """
        gradients = dict(self.model.named_gradients())
        for name, parameter in self.model.named_parameters():
            if name not in gradients:
                raise RuntimeError(f"{name} has no gradient; run forward and backward before step")
            parameter -= self.lr * gradients[name]


def sgd_step(model: Layer, x: Array, targets: Labels, lr: float) -> float:
    """One step of SGD on the softmax cross-entropy of one batch.

    Shape:
        - x: ``(batch, in_features)``; targets: ``(batch,)``

    Returns:
        the loss before the step.

    Examples:
        >>> import numpy as np
        >>> from kilolayer.reference import Linear
        >>> model = Linear(1, 2)
        >>> losses = [sgd_step(model, np.ones((1, 1)), np.array([0]), lr=0.5) for _ in range(2)]
        >>> losses[1] < losses[0]
        True
    """
    loss, grad = softmax_cross_entropy(model.forward(x), targets)
    model.backward(grad)
    SGD(model, lr=lr).step()
    return loss
