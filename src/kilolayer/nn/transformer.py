"""torch.nn.Transformer under any residual scheme."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from kilolayer.nn.activations import Activation
from kilolayer.nn.checkpointing import Segment
from kilolayer.nn.decoder import TransformerDecoder
from kilolayer.nn.decoder_layer import TransformerDecoderLayer
from kilolayer.nn.encoder import TransformerEncoder
from kilolayer.nn.encoder_layer import TransformerEncoderLayer
from kilolayer.nn.options import check_counts
from kilolayer.schemes import Depth, Scheme


class Transformer(nn.Module):
    """Encoder and decoder, with torch.nn's arguments and state-dict keys, final norms included.

    The scales of a depth-dependent scheme come from both depths.

    Args:
        d_model, nhead, num_encoder_layers, num_decoder_layers, dim_feedforward: as in torch.nn.
        dropout, activation, custom_encoder, custom_decoder, layer_norm_eps: as in torch.nn.
        batch_first, norm_first, bias, device, dtype: as in torch.nn.
        scheme, norm, recompute_activations: as in :class:`TransformerEncoderLayer`.
        checkpoint_every: as in :class:`TransformerEncoder`.

    Shape:
        - src: ``(source length, batch, d_model)``, or ``(batch, source length, d_model)`` if ``batch_first``
        - tgt: the same layout, any length
        - output: as tgt

    Examples:
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
        memory = self.encoder(src, mask=src_mask, src_key_padding_mask=src_key_padding_mask, is_causal=src_is_causal)
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
            raise ValueError(f"src and tgt must have {self.d_model} features, got {src.shape[-1]} and {tgt.shape[-1]}")

    @staticmethod
    def generate_square_subsequent_mask(
        sz: int, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> Tensor:
        """The additive causal mask: ``-inf`` above the diagonal, 0 elsewhere.

        Shape: ``(sz, sz)``.
        """
        return torch.full((sz, sz), float("-inf"), dtype=dtype, device=device).triu_(diagonal=1)
