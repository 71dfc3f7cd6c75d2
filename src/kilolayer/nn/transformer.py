"""torch.nn.TransformerEncoder, TransformerDecoder and Transformer under any residual scheme."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from kilolayer.nn.activations import Activation
from kilolayer.nn.checkpointing import Segment, check_segment
from kilolayer.nn.context import LayerContext
from kilolayer.nn.decoder_layer import TransformerDecoderLayer
from kilolayer.nn.depth_guard import guard_depth
from kilolayer.nn.encoder_layer import TransformerEncoderLayer
from kilolayer.nn.layer_place import as_depth
from kilolayer.nn.layer_stack import run_layers
from kilolayer.nn.masks import AttentionMask, merge_masks
from kilolayer.nn.options import check_counts
from kilolayer.nn.placed_layer import Layer, rebuild_layer
from kilolayer.schemes import Depth, Scheme


def build_layers(template: Layer, num_layers: int) -> tuple[list[Layer], Depth]:
    """Layers built one by one after a template, each with scales and values of its own, and their depth.

    Raises:
        ValueError: fewer than one layer, or a template that was built for another depth.
    """
    check_counts(num_layers=num_layers)
    place = template.place
    depth = place.depth if place.is_given and place.depth is not None else as_depth(num_layers, place.stack)
    if depth.num_layers(place.stack) != num_layers:
        raise ValueError(
            f"the template was built for num_layers={depth.num_layers(place.stack)}, the stack has {num_layers} "
            "layers; leave num_layers out of the template, the stack tells its layers"
        )
    layers = [
        rebuild_layer(template, dataclasses.replace(place, depth=depth, layer_index=index))
        for index in range(num_layers)
    ]
    return layers, depth


class TransformerEncoder(nn.Module):
    """A stack of encoder layers, with torch.nn's arguments and state-dict keys.

    The layer is a template: it is built again ``num_layers`` times, so that each layer draws values of its own
    and gets the scales of its place. torch.nn copies the layer it is given, values and all.

    Args:
        encoder_layer: a :class:`TransformerEncoderLayer`; none of its values are used.
        num_layers: layers of the stack.
        norm: the norm behind the last layer, if any.
        enable_nested_tensor, mask_check: accepted for torch.nn's sake; there is no nested-tensor path.
        checkpoint_every: keep activations at every so many layers only and compute the others again in the
            backward; ``"auto"`` keeps least.

    Shape:
        - src: as the layers take it
        - output: as src

    Raises:
        ValueError: fewer than one layer, or a template built for another depth.
        TypeError: a layer that is not one of kilolayer's.

    Example:
        >>> encoder = TransformerEncoder(TransformerEncoderLayer(16, 4, scheme="deepnorm"), num_layers=8)
        >>> encoder.layers[0].scales[0].skip_scale
        2.0
    """

    def __init__(
        self,
        encoder_layer: TransformerEncoderLayer,
        num_layers: int,
        norm: nn.Module | None = None,
        enable_nested_tensor: bool = True,
        mask_check: bool = True,
        *,
        checkpoint_every: Segment = None,
    ):
        super().__init__()
        _check_template(encoder_layer, TransformerEncoderLayer)
        layers, depth = build_layers(encoder_layer, num_layers)
        self.depth_guard = guard_depth(self, encoder_layer.place.scheme, depth)
        self.layers = nn.ModuleList(layers)
        self.num_layers = num_layers
        self.norm = norm
        self.checkpoint_every = check_segment(checkpoint_every)
        self.options = encoder_layer.options

    def forward(
        self,
        src: Tensor,
        mask: Tensor | AttentionMask | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:
        """As torch.nn's, but that ``is_causal=None`` does not compare ``mask`` with a causal one."""
        if src.dim() == 2:
            batch_dim = self.options.batch_dim
            return self(src.unsqueeze(batch_dim), mask, src_key_padding_mask, is_causal).squeeze(batch_dim)
        sizes = self.options.mask_sizes(src)
        context = LayerContext(
            mask=merge_masks(mask, src_key_padding_mask, is_causal=bool(is_causal), **sizes)
        )
        out = run_layers(
            self.layers,
            src,
            context,
            call=_call_encoder_layer,
            kind=TransformerEncoderLayer,
            checkpoint_every=self.checkpoint_every,
        )
        return out if self.norm is None else self.norm(out)


class TransformerDecoder(nn.Module):
    """A stack of decoder layers, with torch.nn's arguments and state-dict keys; the layer is a template.

    What :class:`TransformerEncoder` says of templates holds here too. A template whose ``num_layers`` is a
    :class:`~kilolayer.schemes.Depth` says how deep the encoder is; without, it is taken to be as deep.

    Shape:
        - tgt, memory: as the layers take them
        - output: as tgt

    Raises:
        ValueError: fewer than one layer, or a template built for another depth.
        TypeError: a layer that is not one of kilolayer's.

    Example:
        >>> template = TransformerDecoderLayer(16, 4, scheme="keel")
        >>> TransformerDecoder(template, num_layers=4).layers[3].scales[0].skip_scale
        12.0
    """

    def __init__(
        self,
        decoder_layer: TransformerDecoderLayer,
        num_layers: int,
        norm: nn.Module | None = None,
        *,
        checkpoint_every: Segment = None,
    ):
        super().__init__()
        _check_template(decoder_layer, TransformerDecoderLayer)
        layers, depth = build_layers(decoder_layer, num_layers)
        self.depth_guard = guard_depth(self, decoder_layer.place.scheme, depth)
        self.layers = nn.ModuleList(layers)
        self.num_layers = num_layers
        self.norm = norm
        self.checkpoint_every = check_segment(checkpoint_every)
        self.options = decoder_layer.options

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | AttentionMask | None = None,
        memory_mask: Tensor | AttentionMask | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """As torch.nn's, but that ``tgt_is_causal=None`` does not compare ``tgt_mask`` with a causal one."""
        if tgt.dim() == 2:
            batch_dim = self.options.batch_dim
            masks = tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask
            hints = tgt_is_causal, memory_is_causal
            return self(tgt.unsqueeze(batch_dim), memory.unsqueeze(batch_dim), *masks, *hints).squeeze(batch_dim)
        sizes = self.options.mask_sizes(tgt)
        context = LayerContext(
            memory,
            mask=merge_masks(tgt_mask, tgt_key_padding_mask, is_causal=bool(tgt_is_causal), **sizes),
            memory_mask=merge_masks(memory_mask, memory_key_padding_mask, is_causal=memory_is_causal, **sizes),
        )
        out = run_layers(
            self.layers,
            tgt,
            context,
            call=_call_decoder_layer,
            kind=TransformerDecoderLayer,
            checkpoint_every=self.checkpoint_every,
        )
        return out if self.norm is None else self.norm(out)


class Transformer(nn.Module):
    """Encoder and decoder, with torch.nn's arguments and state-dict keys, final norms included.

    The scales of a depth-dependent scheme come from both depths.

    Args:
        d_model, nhead, num_encoder_layers, num_decoder_layers, dim_feedforward, dropout, activation,
            custom_encoder, custom_decoder, layer_norm_eps, batch_first, norm_first, bias, device, dtype: as in
            torch.nn.
        scheme, norm, recompute_activations: as in :class:`TransformerEncoderLayer`.
        checkpoint_every: as in :class:`TransformerEncoder`.

    Shape:
        - src: ``(source length, batch, d_model)``, or ``(batch, source length, d_model)`` if ``batch_first``
        - tgt: the same layout, any length
        - output: as tgt

    Example:
        >>> model = Transformer(16, 4, num_encoder_layers=6, num_decoder_layers=6, scheme="deepnorm")
        >>> round(model.encoder.layers[0].scales[0].skip_scale, 4)
        1.4179
    """

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Activation = "relu",
        custom_encoder: nn.Module | None = None,
        custom_decoder: nn.Module | None = None,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        scheme: str | Scheme | None = None,
        norm: str = "layer",
        recompute_activations: bool = True,
        checkpoint_every: Segment = None,
    ):
        super().__init__()
        check_counts(num_encoder_layers=num_encoder_layers, num_decoder_layers=num_decoder_layers)
        arguments: dict[str, Any] = {
            "dim_feedforward": dim_feedforward, "dropout": dropout, "activation": activation,
            "layer_norm_eps": layer_norm_eps, "batch_first": batch_first, "norm_first": norm_first, "bias": bias,
            "device": device, "dtype": dtype, "scheme": scheme, "norm": norm,
            "recompute_activations": recompute_activations,
            "num_layers": Depth(encoder_layers=num_encoder_layers, decoder_layers=num_decoder_layers),
        }  # fmt: skip
        if custom_encoder is None:
            encoder_layer = TransformerEncoderLayer(d_model, nhead, **arguments)
            custom_encoder = TransformerEncoder(
                encoder_layer,
                num_encoder_layers,
                encoder_layer.options.build_norm(),
                checkpoint_every=checkpoint_every,
            )
        if custom_decoder is None:
            decoder_layer = TransformerDecoderLayer(d_model, nhead, **arguments)
            custom_decoder = TransformerDecoder(
                decoder_layer,
                num_decoder_layers,
                decoder_layer.options.build_norm(),
                checkpoint_every=checkpoint_every,
            )
        self.encoder = custom_encoder
        self.decoder = custom_decoder
        self.d_model = d_model
        self.nhead = nhead
        self.batch_first = batch_first

    def forward(
        self,
        src: Tensor,
        tgt: Tensor,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        src_is_causal: bool | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """As torch.nn's.

        Raises:
            ValueError: sources and targets of different batch sizes, or of a width other than ``d_model``.
        """
        self._check_shapes(src, tgt)
        memory = self.encoder(
            src, mask=src_mask, src_key_padding_mask=src_key_padding_mask, is_causal=src_is_causal
        )
        return self.decoder(
            tgt,
            memory,
            tgt_mask=tgt_mask,
            memory_mask=memory_mask,
            tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask,
            tgt_is_causal=tgt_is_causal,
            memory_is_causal=memory_is_causal,
        )

    def _check_shapes(self, src: Tensor, tgt: Tensor) -> None:
        batch_dim = 0 if self.batch_first else 1
        if src.dim() == 3 and src.shape[batch_dim] != tgt.shape[batch_dim]:
            raise ValueError(
                f"src and tgt must have the same batch size, got {src.shape[batch_dim]} and {tgt.shape[batch_dim]}; "
                f"the batch is dimension {batch_dim} with batch_first={self.batch_first}"
            )
        if src.shape[-1] != self.d_model or tgt.shape[-1] != self.d_model:
            raise ValueError(
                f"src and tgt must have {self.d_model} features, got {src.shape[-1]} and {tgt.shape[-1]}"
            )

    @staticmethod
    def generate_square_subsequent_mask(
        sz: int, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> Tensor:
        """The additive causal mask: ``-inf`` above the diagonal, 0 elsewhere.

        Shape: ``(sz, sz)``.
        """
        return torch.full((sz, sz), float("-inf"), dtype=dtype, device=device).triu_(diagonal=1)


def _call_encoder_layer(layer: nn.Module, x: Tensor, context: LayerContext) -> Tensor:
    return layer(x, src_mask=context.mask)


def _call_decoder_layer(layer: nn.Module, x: Tensor, context: LayerContext) -> Tensor:
    return layer(x, context.memory, tgt_mask=context.mask, memory_mask=context.memory_mask)


def _check_template(layer: object, wanted: type[nn.Module]) -> None:
    if not isinstance(layer, wanted):
        raise TypeError(
            f"{wanted.__name__} is built again for every layer of the stack, so it must be kilolayer's; got "
            f"{type(layer).__module__}.{type(layer).__name__}, use kilolayer.nn.{wanted.__name__}"
        )
