"""LayerNorm, RMSNorm and BatchNorm in NumPy, with their Jacobians written out."""

from __future__ import annotations

import numpy as np

from kilolayer.reference.layer import Array, Layer, check_count, check_features


class _Norm(Layer):
    """What the three have in common: a gain (and bias) per feature, and ``eps`` under the root."""

    def __init__(self, num_features: int, eps: float, *, bias: bool) -> None:
        super().__init__()
        self.num_features = check_count("num_features", num_features)
        if not eps >= 0:
            raise ValueError(f"eps must be >= 0, got {eps!r}")
        self.eps = float(eps)
        self.parameters["weight"] = np.ones(num_features)
        if bias:
            self.parameters["bias"] = np.zeros(num_features)

    def _affine(self, x_hat: Array) -> Array:
        y = x_hat * self.parameters["weight"]
        if "bias" in self.parameters:
            y += self.parameters["bias"]
        return y

    def _affine_backward(self, grad_out: Array, x_hat: Array) -> Array:
        """Gradients of gain and bias; returns the gradient with respect to ``x_hat``."""
        self.gradients["weight"] = np.einsum("bf,bf->f", grad_out, x_hat)
        if "bias" in self.parameters:
            self.gradients["bias"] = grad_out.sum(axis=0)
        return grad_out * self.parameters["weight"]


class LayerNorm(_Norm):
    """``y = weight * (x - mean) / sqrt(var + eps) + bias``, mean and (biased) variance over the features.

    With ``x_hat`` the normalised input, ``s = sqrt(var + eps)`` and ``g = weight * dL/dy``:
    ``dL/dx = (g - mean(g) - x_hat * mean(g * x_hat)) / s``.

    Shape:
        - input and output: ``(batch, num_features)``
        - ``weight`` and ``bias``: ``(num_features,)``

    Raises:
        ValueError: a size below 1, a negative ``eps``, or an input of another shape.

    Examples:
        >>> import numpy as np
        >>> LayerNorm(2, eps=0.0).forward(np.array([[1.0, 3.0]])).tolist()
        [[-1.0, 1.0]]

    Reference: Ba et al. 2016, arXiv:1607.06450, eq. 3 and 4.
    """

    def __init__(self, num_features: int, eps: float = 1e-5) -> None:
        super().__init__(num_features, eps, bias=True)

    def forward(self, x: Array) -> Array:
        check_features(self, x, self.num_features)
        x_hat = x - x.mean(axis=1, keepdims=True)
        inverse = 1 / np.sqrt(_mean_product(x_hat, x_hat) + self.eps)
        x_hat *= inverse
        self._kept = x_hat, inverse
        return self._affine(x_hat)

    def backward(self, grad_out: Array) -> Array:
        x_hat, inverse = self._recall()
        grad_in = self._affine_backward(grad_out, x_hat)
        along = _mean_product(grad_in, x_hat)
        grad_in -= grad_in.mean(axis=1, keepdims=True)
        grad_in -= x_hat * along
        grad_in *= inverse
        return grad_in


class RMSNorm(_Norm):
    """``y = weight * x / r`` with ``r = sqrt(mean(x^2) + eps)``, the mean over the features.

    With ``x_hat = x / r`` and ``g = weight * dL/dy``: ``dL/dx = (g - x_hat * mean(g * x_hat)) / r``.

    Shape:
        - input and output: ``(batch, num_features)``
        - ``weight``: ``(num_features,)``

    Raises:
        ValueError: a size below 1, a negative ``eps``, or an input of another shape.

    Examples:
        >>> import numpy as np
        >>> RMSNorm(2, eps=0.0).forward(np.array([[3.0, -3.0]])).tolist()
        [[1.0, -1.0]]

    Reference: Zhang & Sennrich 2019, arXiv:1910.07467, eq. 4.
    """

    def __init__(self, num_features: int, eps: float = 1e-5) -> None:
        super().__init__(num_features, eps, bias=False)

    def forward(self, x: Array) -> Array:
        check_features(self, x, self.num_features)
        inverse = 1 / np.sqrt(_mean_product(x, x) + self.eps)
        x_hat = x * inverse
        self._kept = x_hat, inverse
        return self._affine(x_hat)

    def backward(self, grad_out: Array) -> Array:
        x_hat, inverse = self._recall()
        grad_in = self._affine_backward(grad_out, x_hat)
        grad_in -= x_hat * _mean_product(grad_in, x_hat)
        grad_in *= inverse
        return grad_in


class BatchNorm(_Norm):
    """``y = weight * (x - mean) / sqrt(var + eps) + bias``, mean and (biased) variance over the batch.

    In training the running statistics move by ``momentum`` towards those of the batch (the running variance
    towards the unbiased one); in evaluation they stand in for them, and the layer is affine. The derivative
    in training is that of :class:`LayerNorm` with means over the batch; in evaluation ``dL/dx = g / s``.

    Shape:
        - input and output: ``(batch, num_features)``
        - ``weight``, ``bias``, ``running_mean``, ``running_var``: ``(num_features,)``

    Raises:
        ValueError: a size below 1, a negative ``eps``, an input of another shape, or a training batch of one
            sample, which has no variance.

    Examples:
        >>> import numpy as np
        >>> norm = BatchNorm(1, eps=0.0)
        >>> norm.forward(np.array([[1.0], [3.0]])).tolist()
        [[-1.0], [1.0]]
        >>> norm.buffers["running_mean"].round(3).tolist()
        [0.2]

    Reference: Ioffe & Szegedy 2015, arXiv:1502.03167, algorithm 1.
    """

    def __init__(self, num_features: int, eps: float = 1e-5, *, momentum: float = 0.1) -> None:
        super().__init__(num_features, eps, bias=True)
        self.momentum = float(momentum)
        self.buffers["running_mean"] = np.zeros(num_features)
        self.buffers["running_var"] = np.ones(num_features)

    def forward(self, x: Array) -> Array:
        check_features(self, x, self.num_features)
        if self.training:
            mean = x.mean(axis=0)
            x_hat = x - mean
            variance = self._update_running(mean, x_hat)
        else:
            x_hat = x - self.buffers["running_mean"]
            variance = self.buffers["running_var"]
        inverse = 1 / np.sqrt(variance + self.eps)
        x_hat *= inverse
        # The mode is kept too: the derivative is that of the forward that ran, whatever the flag says later.
        self._kept = x_hat, inverse, self.training
        return self._affine(x_hat)

    def _update_running(self, mean: Array, centered: Array) -> Array:
        """Move the running statistics; returns the biased variance of the batch."""
        batch = len(centered)
        if batch < 2:
            raise ValueError(f"BatchNorm needs at least 2 samples in training, got {batch}; add some or call eval()")
        variance: Array = np.einsum("bf,bf->f", centered, centered) / batch
        for name, value in (("running_mean", mean), ("running_var", variance * (batch / (batch - 1)))):
            self.buffers[name] += self.momentum * (value - self.buffers[name])
        return variance

    def backward(self, grad_out: Array) -> Array:
        x_hat, inverse, trained = self._recall()
        grad_in = self._affine_backward(grad_out, x_hat)
        if trained:
            along = np.einsum("bf,bf->f", grad_in, x_hat) / len(x_hat)
            grad_in -= grad_in.mean(axis=0)
            grad_in -= x_hat * along
        grad_in *= inverse
        return grad_in


NORMS: dict[str, type[LayerNorm] | type[RMSNorm] | type[BatchNorm]] = {
    "layer": LayerNorm,
    "rms": RMSNorm,
    "batch": BatchNorm,
}
"""The norms a network can be built with, by the name its ``norm`` argument takes."""


def _mean_product(a: Array, b: Array) -> Array:
    """``mean(a * b)`` over the features without the product in memory, shape ``(batch, 1)``."""
    return (np.einsum("bf,bf->b", a, b) / a.shape[1])[:, None]
