"""Linear, ReLU and Sequential in NumPy."""

from __future__ import annotations

import numpy as np

from kilolayer.reference.layer import Array, Layer, check_count, check_features


class Linear(Layer):
    """``y = x W^T + b``, with weight and bias stored as ``torch.nn.Linear`` stores them, zero until loaded.

    ``dL/dW = g^T x``, ``dL/db = sum over the batch of g``, ``dL/dx = g W``.

    Shape:
        - input: ``(batch, in_features)``
        - output: ``(batch, out_features)``
        - ``weight``: ``(out_features, in_features)``; ``bias``: ``(out_features,)``

    Raises:
        ValueError: a size below 1, or an input of another shape.

    Examples:
        >>> import numpy as np
        >>> linear = Linear(2, 1)
        >>> linear.load_parameters({"weight": np.array([[1.0, 2.0]]), "bias": np.array([3.0])})
        >>> linear.forward(np.array([[1.0, 1.0]])).tolist()
        [[6.0]]
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.in_features = check_count("in_features", in_features)
        self.out_features = check_count("out_features", out_features)
        self.parameters["weight"] = np.zeros((out_features, in_features))
        self.parameters["bias"] = np.zeros(out_features)

    def forward(self, x: Array) -> Array:
        check_features(self, x, self.in_features)
        self._kept = x
        y: Array = x @ self.parameters["weight"].T
        y += self.parameters["bias"]
        return y

    def backward(self, grad_out: Array) -> Array:
        x = self._recall()
        self.gradients["weight"] = grad_out.T @ x
        self.gradients["bias"] = grad_out.sum(axis=0)
        grad_in: Array = grad_out @ self.parameters["weight"]
        return grad_in


class ReLU(Layer):
    """``y = max(x, 0)``; the derivative at 0 is 0, as in PyTorch.

    Examples:
        >>> import numpy as np
        >>> relu = ReLU()
        >>> relu.forward(np.array([[-1.0, 0.0, 2.0]])).tolist()
        [[0.0, 0.0, 2.0]]
        >>> relu.backward(np.array([[5.0, 5.0, 5.0]])).tolist()
        [[0.0, 0.0, 5.0]]
    """

    def forward(self, x: Array) -> Array:
        self._kept = np.maximum(x, 0)
        return self._kept

    def backward(self, grad_out: Array) -> Array:
        # A product with the mask would be quicker, but turns an infinite gradient of a silent unit into NaN.
        return np.where(self._recall() <= 0, grad_out.dtype.type(0), grad_out)


class Sequential(Layer):
    """Layers in a row: positional ones are named ``0``, ``1``, ..., keyword ones by their keyword.

    ``dL/dx`` is the product of the layers' Jacobians, applied from the last to the first.

    Examples:
        >>> [name for name, _ in Sequential(Linear(3, 2), ReLU(), head=Linear(2, 1)).named_parameters()]
        ['0.weight', '0.bias', 'head.weight', 'head.bias']
    """

    def __init__(self, *layers: Layer, **named_layers: Layer) -> None:
        super().__init__()
        self.children.update({str(index): layer for index, layer in enumerate(layers)})
        self.children.update(named_layers)

    def forward(self, x: Array) -> Array:
        for layer in self.children.values():
            x = layer.forward(x)
        return x

    def backward(self, grad_out: Array) -> Array:
        for layer in reversed(self.children.values()):
            grad_out = layer.backward(grad_out)
        return grad_out
