"""What a deep model needs: parameters, floating-point operations, memory; formulas for any depth and width."""

from __future__ import annotations

from dataclasses import dataclass

from kilolayer.nn.checkpointing import KEPT_PER_LAYER, segment_length

STATE_BYTES = {"fp32": 16, "bf16": 18}
"""Bytes per parameter: weight, gradient and Adam's two moments in float32; under autocast a copy in half precision."""

NUMBER_BYTES = {"fp32": 4, "bf16": 2}
"""Of an activation in the layers."""

FORWARD_AND_BACKWARD = 3
"""The backward pass multiplies twice for every matrix of the forward one: for the input's gradient and the weight's."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """A decoder-only model with a feed-forward four times as wide as the stream, its head tied to the embedding.

    Attributes:
        num_layers, width, vocab_size: of the model.
        length: tokens of a sequence.
    """

    num_layers: int
    width: int
    vocab_size: int
    length: int

    @property
    def num_parameters(self) -> int:
        """``L (12 w^2 + 13 w) + V w``: attention 4, feed-forward 8; biases and two norms a layer.

        Examples:
            >>> Size(num_layers=1000, width=1024, vocab_size=32_000, length=2048).num_parameters
            12628992000
        """
        return self.num_layers * (12 * self.width**2 + 13 * self.width) + self.vocab_size * self.width

    def forward_flops(self, num_tokens: int) -> int:
        """Operations of the matrix products of one forward pass, two for each multiplication and sum.

        ``tokens (24 L w^2 + 4 L T w + 2 w V)``: matrices, attention over all T positions, head.
        """
        per_layer = 24 * self.width**2 + 4 * self.length * self.width
        return num_tokens * (self.num_layers * per_layer + 2 * self.width * self.vocab_size)

    def step_flops(self, num_tokens: int, *, recompute: bool = False) -> int:
        """Operations of a training step: three forward passes' worth, four if the layers' activations are
        computed again."""
        return (FORWARD_AND_BACKWARD + recompute) * self.forward_flops(num_tokens)

    def state_bytes(self, precision: str = "bf16") -> int:
        """Weights, gradients and Adam's moments, over all processes of an FSDP group together."""
        return STATE_BYTES[precision] * self.num_parameters

    def activation_numbers(self, num_tokens: int, *, recompute_every: int | str | None = None) -> float:
        """Numbers that the layers keep for the backward pass, per process.

        ``11 w L`` a token; with segments of s layers ``w (L / s + 11 s)``, least at ``s = sqrt(L / 11)``.
        """
        per_token = float(KEPT_PER_LAYER * self.num_layers)
        if recompute_every is not None:
            every = segment_length(self.num_layers, recompute_every)  # type: ignore[arg-type]
            per_token = self.num_layers / every + KEPT_PER_LAYER * every
        return num_tokens * self.width * per_token

    def memory_bytes(
        self,
        num_tokens: int,
        *,
        num_processes: int,
        precision: str = "bf16",
        recompute_every: int | str | None = "auto",
    ) -> float:
        """Of one process: its share of the states, the activations of its own tokens, logits and their gradient.

        Args:
            num_tokens: in one micro-batch of one process.
            num_processes: that share the states, under FSDP.
            precision: ``"fp32"`` or ``"bf16"``.
            recompute_every: see :class:`~kilolayer.nn.TransformerConfig`.
        """
        activations = self.activation_numbers(num_tokens, recompute_every=recompute_every) * NUMBER_BYTES[precision]
        logits = 2 * 4 * num_tokens * self.vocab_size
        return self.state_bytes(precision) / num_processes + activations + logits


def tokens_to_hide_gathering(flops_per_s: float, bytes_per_s: float) -> float:
    """Tokens per process and step from which FSDP's transfers are hidden behind the arithmetic.

    A layer of n weights costs ``6 n`` operations a token; its weights are gathered twice and its gradient
    scattered once, in half precision ``6 n`` bytes. So ``tokens >= flops_per_s / bytes_per_s``, at any width and depth.

    Examples:
        >>> tokens_to_hide_gathering(400e12, 50e9)
        8000.0
    """
    return flops_per_s / bytes_per_s


def bubble_share(num_stages: int, num_micro_batches: int) -> float:
    """The share of a step in which a pipeline's stages wait: ``(p - 1) / (m + p - 1)``.

    Examples:
        >>> round(bubble_share(8, 32), 3)
        0.179

    Reference: Huang et al. 2019, arXiv:1811.06965, section 2.3.
    """
    return (num_stages - 1) / (num_micro_batches + num_stages - 1)
