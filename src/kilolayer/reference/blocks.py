"""The two kinds of block a deep MLP is made of, and the branch inside one of them."""

from __future__ import annotations

from kilolayer.reference.layer import Array, Layer
from kilolayer.reference.layers import Linear, ReLU, Sequential


class ChainBlock(Layer):
    """A block without skip: ``y = relu(norm(W x + b))``, the norm optional.

    ``readout`` is the pre-activation of the last forward: what enters the ReLU.

    Shape:
        - input and output: ``(batch, width)``

    Examples:
        >>> [name for name, _ in ChainBlock(4).named_parameters()]
        ['linear.weight', 'linear.bias']
    """

    def __init__(self, width: int, *, norm: Layer | None = None) -> None:
        super().__init__()
        self.children["linear"] = Linear(width, width)
        if norm is not None:
            self.children["norm"] = norm
        self.children["activation"] = ReLU()
        self.readout: Array | None = None

    def forward(self, x: Array) -> Array:
        *before, activation = self.children.values()
        for layer in before:
            x = layer.forward(x)
        self.readout = x
        return activation.forward(x)

    def backward(self, grad_out: Array) -> Array:
        for layer in reversed(self.children.values()):
            grad_out = layer.backward(grad_out)
        return grad_out


class FeedForward(Sequential):
    """The branch of a residual block: ``W2 relu(W1 x + b1) + b2``.

    Shape:
        - input and output: ``(batch, width)``
    """

    def __init__(self, width: int) -> None:
        super().__init__(linear1=Linear(width, width), activation=ReLU(), linear2=Linear(width, width))


class Residual(Layer):
    """``y = post_norm(skip_scale * x + branch_scale * end_norm(branch(pre_norm(x))))``, each norm optional.

    With ``g`` the gradient behind ``post_norm``, ``dL/dx = skip_scale * g + J^T (branch_scale * g)``, ``J``
    the Jacobian of ``end_norm(branch(pre_norm(.)))``. ``readout`` is the output of the last forward.

    Args:
        branch: maps ``(batch, width)`` to ``(batch, width)``.
        pre_norm: the norm before the branch.
        end_norm: the norm at the end of the branch.
        post_norm: the norm after the sum.
        skip_scale: alpha, a factor on the skip.
        branch_scale: lambda, a factor on the branch.

    Shape:
        - input and output: ``(batch, width)``

    Examples:
        >>> import numpy as np
        >>> block = Residual(FeedForward(2), skip_scale=3.0)
        >>> block.forward(np.array([[1.0, 2.0]])).tolist()
        [[3.0, 6.0]]

    Reference: He et al. 2015, arXiv:1512.03385, eq. 1; with ``skip_scale``, Wang et al. 2022,
    arXiv:2203.00555, section 3.1.
    """

    def __init__(
        self,
        branch: Layer,
        *,
        pre_norm: Layer | None = None,
        end_norm: Layer | None = None,
        post_norm: Layer | None = None,
        skip_scale: float = 1.0,
        branch_scale: float = 1.0,
    ) -> None:
        super().__init__()
        slots = {"pre_norm": pre_norm, "branch": branch, "end_norm": end_norm, "post_norm": post_norm}
        self.children.update({name: layer for name, layer in slots.items() if layer is not None})
        # Python floats: a NumPy float64 would turn a float32 network into a float64 one.
        self.skip_scale = float(skip_scale)
        self.branch_scale = float(branch_scale)
        self.readout: Array | None = None

    def forward(self, x: Array) -> Array:
        branch_out = x
        for layer in self._branch_layers():
            branch_out = layer.forward(branch_out)
        y: Array = _scaled(x, self.skip_scale) + _scaled(branch_out, self.branch_scale)
        if "post_norm" in self.children:
            y = self.children["post_norm"].forward(y)
        self.readout = y
        return y

    def backward(self, grad_out: Array) -> Array:
        if "post_norm" in self.children:
            grad_out = self.children["post_norm"].backward(grad_out)
        branch_grad = _scaled(grad_out, self.branch_scale)
        for layer in reversed(self._branch_layers()):
            branch_grad = layer.backward(branch_grad)
        return _scaled(grad_out, self.skip_scale) + branch_grad

    def _branch_layers(self) -> list[Layer]:
        return [self.children[name] for name in ("pre_norm", "branch", "end_norm") if name in self.children]


def _scaled(x: Array, scale: float) -> Array:
    """``scale * x``; the array itself where there is nothing to do."""
    return x if scale == 1.0 else scale * x
