"""What a whole Transformer is made of."""

from __future__ import annotations

from dataclasses import dataclass

from kilolayer.init import get_base_rule
from kilolayer.nn.activations import Activation
from kilolayer.nn.checkpointing import Segment, check_segment
from kilolayer.nn.norms import EPS
from kilolayer.nn.options import LayerOptions, check_counts, check_flags, check_numbers
from kilolayer.nn.positions import check_positions
from kilolayer.nn.stated_scale import check_skip_scale, with_skip_scale
from kilolayer.schemes import Depth, Scheme, get_scheme


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """Sizes, parts and scheme of a :class:`~kilolayer.nn.CausalLM` or :class:`~kilolayer.nn.Seq2Seq`.

    Attributes:
        vocab_size: tokens; of the source, if ``target_vocab_size`` is given.
        width: size of the stream.
        num_heads: query heads.
        encoder_layers, decoder_layers: depth; a :class:`~kilolayer.nn.CausalLM` has decoder layers only.
        scheme: a scheme or its name.
        hidden: size between the feed-forward matrices, ``4 * width`` unless given.
        positions: ``"sinusoidal"``, ``"learned"`` (needs ``max_length``) or ``"rotary"``.
        max_length: longest sequence of learned positions, in tokens.
        target_vocab_size: tokens of the target, where source and target do not share an embedding.
        tied_head: whether the head's matrix is the embedding of the tokens it predicts.
        logit_scale: factor of the logits; 1 unless a width transfer asks for less.
        base: base rule of the initial values, see :func:`kilolayer.init.plan_init`.
        checkpoint_every: see :class:`~kilolayer.nn.TransformerEncoder`.
        skip_scale: a scale stated by hand, of a single stack; it must be the scheme's at this depth.
        skip_scale_is_meant: take ``skip_scale`` instead of the scheme's, whatever the depth.
        num_kv_heads, activation, norm, norm_eps, dropout, bias, qk_norm, recompute_activations: see
            :class:`~kilolayer.nn.options.LayerOptions`.

    Raises:
        ValueError: a size below 1, sizes that do not fit, an unknown name, a tied head under a scheme that starts
            the head at zero, or a stated skip scale that does not fit the depth.
        TypeError: an argument of another kind.

    Examples:
        >>> config = TransformerConfig(vocab_size=100, width=64, num_heads=4, decoder_layers=48)
        >>> config.layer_options.hidden
        256
    """

    vocab_size: int
    width: int
    num_heads: int
    encoder_layers: int = 0
    decoder_layers: int = 0
    scheme: str | Scheme = "deepnorm"
    hidden: int | None = None
    positions: str = "sinusoidal"
    max_length: int | None = None
    target_vocab_size: int | None = None
    tied_head: bool = True
    num_kv_heads: int | None = None
    activation: str | Activation = "gelu"
    norm: str = "layer"
    norm_eps: float = EPS
    dropout: float = 0.0
    bias: bool = True
    qk_norm: bool = False
    base: str = "xavier"
    logit_scale: float = 1.0
    recompute_activations: bool = True
    checkpoint_every: Segment = None
    skip_scale: float | None = None
    skip_scale_is_meant: bool = False

    def __post_init__(self) -> None:
        check_counts(vocab_size=self.vocab_size)
        if not isinstance(self.scheme, (str, Scheme)):
            raise TypeError(f"scheme must be a Scheme or its name, got {self.scheme!r}")
        check_numbers(logit_scale=self.logit_scale)
        check_flags(tied_head=self.tied_head, skip_scale_is_meant=self.skip_scale_is_meant)
        if self.skip_scale is not None:
            check_numbers(skip_scale=self.skip_scale)
        if self.target_vocab_size is not None:
            check_counts(target_vocab_size=self.target_vocab_size)
        self._check_skip_scale()
        get_base_rule(self.base)
        check_segment(self.checkpoint_every)
        self._check_positions()
        scheme = self.resolved_scheme
        if self.tied_head and scheme.head_gain == 0:
            raise ValueError(
                f"scheme {scheme.name!r} starts the output head at zero, which a head tied to the embedding cannot; "
                "pass tied_head=False"
            )

    def _check_skip_scale(self) -> None:
        scheme, depth = self.resolved_scheme, self.depth
        if self.skip_scale is not None and not self.skip_scale_is_meant:
            check_skip_scale(self.skip_scale, scheme, depth)
        elif self.skip_scale_is_meant and self.skip_scale is None:
            raise ValueError("skip_scale_is_meant=True says that a skip_scale is meant, but none is given")

    def _check_positions(self) -> None:
        check_positions(self.positions)
        if self.positions == "learned":
            if self.max_length is None:
                raise ValueError("learned positions are as many as max_length, which is missing")
            check_counts(max_length=self.max_length)
        elif self.max_length is not None:
            raise ValueError(
                f"max_length={self.max_length} limits learned positions only, got positions={self.positions!r}"
            )
        elif (size := self._paired_size()) % 2:
            raise ValueError(f"{self.positions} positions come in pairs, so {size} must be even")

    def _paired_size(self) -> int:
        options = self.layer_options
        return options.width // options.num_heads if self.positions == "rotary" else options.width

    @property
    def resolved_scheme(self) -> Scheme:
        """The scheme itself, with the skip scale that is meant, if one is."""
        scheme = get_scheme(self.scheme) if isinstance(self.scheme, str) else self.scheme
        if self.skip_scale is None or not self.skip_scale_is_meant:
            return scheme
        return with_skip_scale(scheme, self.skip_scale)

    @property
    def depth(self) -> Depth:
        """How deep the network is."""
        return Depth(encoder_layers=self.encoder_layers, decoder_layers=self.decoder_layers)

    @property
    def layer_options(self) -> LayerOptions:
        """What each layer is made of."""
        return LayerOptions(
            width=self.width,
            num_heads=self.num_heads,
            hidden=4 * self.width if self.hidden is None else self.hidden,
            num_kv_heads=self.num_kv_heads,
            activation=self.activation,
            norm=self.norm,
            norm_eps=self.norm_eps,
            dropout=self.dropout,
            bias=self.bias,
            qk_norm=self.qk_norm,
            recompute_activations=self.recompute_activations,
        )
