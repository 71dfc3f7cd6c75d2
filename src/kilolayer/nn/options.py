"""What a Transformer layer is made of, whatever its scheme: sizes and kinds of its parts."""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kilolayer.nn.activations import GATED, Activation, resolve_activation
from kilolayer.nn.norms import EPS, build_norm

LAYER_NORMS = ("layer", "rms")


@dataclass(frozen=True, kw_only=True)
class LayerOptions:
    """Sizes and kinds of the parts of one Transformer layer.

    Attributes:
        width: size of the stream.
        num_heads: query heads; they divide ``width``.
        hidden: size between the feed-forward matrices.
        num_kv_heads: key and value heads, a divisor of ``num_heads``; ``None`` for as many.
        activation: ``"relu"``, ``"gelu"``, ``"silu"``, ``"swiglu"``, or a function of a tensor.
        norm: ``"layer"`` or ``"rms"``.
        norm_eps: added to the variance inside the norms.
        dropout: probability, inside attention, behind the activation and behind each branch.
        bias: whether matrices and LayerNorms have a bias.
        qk_norm: norms on query and key, per head.
        batch_first: ``(batch, length, width)`` instead of ``(length, batch, width)``.
        recompute_activations: recompute norms and activations in the backward instead of storing them.

    Raises:
        ValueError: a size below 1, heads that do not divide what they must, a dropout outside [0, 1), an
            negative or infinite ``norm_eps``, an unknown norm or activation.
        TypeError: a size that is no int, a number that is none, a flag that is neither true nor false.
    """

    width: int
    num_heads: int
    hidden: int
    num_kv_heads: int | None = None
    activation: str | Activation = "relu"
    norm: str = "layer"
    norm_eps: float = EPS
    dropout: float = 0.0
    bias: bool = True
    qk_norm: bool = False
    batch_first: bool = True
    recompute_activations: bool = True
    device: torch.device | str | None = None
    dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        check_counts(width=self.width, num_heads=self.num_heads, hidden=self.hidden)
        if self.width % self.num_heads:
            raise ValueError(
                f"width {self.width} is not divisible by {self.num_heads} heads; use {_nearest_width(self)} or "
                "another number of heads"
            )
        if self.num_kv_heads is not None:
            check_counts(num_kv_heads=self.num_kv_heads)
            if self.num_heads % self.num_kv_heads:
                raise ValueError(
                    f"{self.num_heads} query heads cannot be shared out among num_kv_heads={self.num_kv_heads}; "
                    "use a divisor"
                )
        check_numbers(norm_eps=self.norm_eps, dropout=self.dropout)
        check_flags(
            bias=self.bias,
            qk_norm=self.qk_norm,
            batch_first=self.batch_first,
            recompute_activations=self.recompute_activations,
        )
        if not 0 <= self.norm_eps < math.inf:
            raise ValueError(f"norm_eps must be >= 0 and finite, got {self.norm_eps}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout}")
        if self.norm not in LAYER_NORMS:
            nearest = difflib.get_close_matches(self.norm, LAYER_NORMS, n=1)
            hint = f"did you mean {nearest[0]!r}?" if nearest else "a Transformer layer takes 'layer' or 'rms'"
            raise ValueError(f"unknown norm {self.norm!r}; {hint}")
        resolve_activation(self.activation)

    @property
    def factory(self) -> dict[str, Any]:
        """``device`` and ``dtype`` as keyword arguments."""
        return {"device": self.device, "dtype": self.dtype}

    @property
    def batch_dim(self) -> int:
        """The dimension of the batch."""
        return 0 if self.batch_first else 1

    def mask_sizes(self, x: Tensor) -> dict[str, Any]:
        """What :func:`~kilolayer.nn.masks.merge_masks` has to know of the queries."""
        return {"num_heads": self.num_heads, "num_queries": x.shape[1 - self.batch_dim], "dtype": x.dtype}

    @property
    def is_gated(self) -> bool:
        """Whether the first feed-forward matrix holds a gate beside what it lets pass."""
        return resolve_activation(self.activation)[0] in GATED

    def build_norm(self, width: int | None = None) -> nn.Module:
        """A norm of this kind over ``width`` channels, by default the stream's."""
        return build_norm(self.norm, width or self.width, eps=self.norm_eps, bias=self.bias, **self.factory)


def check_counts(**counts: object) -> None:
    """Raises ``TypeError`` or ``ValueError`` unless every count is an int of 1 or more."""
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} must be an int, got {value!r}")
        if value < 1:
            raise ValueError(f"{name} must be >= 1, got {value}")


def check_numbers(**numbers: object) -> None:
    """Raises ``TypeError`` unless every value is a real number."""
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{name} must be a number, got {value!r}")


def check_flags(**flags: object) -> None:
    """Raises ``TypeError`` unless every value is true or false."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise TypeError(f"{name} must be True or False, got {value!r}")


def _nearest_width(options: LayerOptions) -> int:
    return max(1, round(options.width / options.num_heads)) * options.num_heads
