"""torch.nn.TransformerDecoderLayer under any residual scheme."""

from __future__ import annotations

import torch
from torch import Tensor

from kilolayer.nn.activations import Activation
from kilolayer.nn.context import LayerContext
from kilolayer.nn.layer_place import find_place, resolve_scheme
from kilolayer.nn.masks import AttentionMask, merge_masks
from kilolayer.nn.options import LayerOptions
from kilolayer.nn.placed_layer import PlacedLayer
from kilolayer.schemes import Depth, Scheme


class TransformerDecoderLayer(PlacedLayer):
    """Self-attention, cross-attention and feed-forward, with torch.nn's arguments and state-dict keys.

    What :class:`~kilolayer.nn.TransformerEncoderLayer` says of schemes and initial values holds here too. An
    int as ``num_layers`` stands for as many decoder layers beside as many encoder layers.

    Shape:
        - tgt: ``(length, batch, d_model)``, ``(batch, length, d_model)`` if ``batch_first``, or
          ``(length, d_model)``
        - memory: the same layout, any length
        - output: as tgt

    Raises:
        ValueError: sizes that do not fit, unknown names; on the first forward, a depth that is not known.

    Examples:
        >>> layer = TransformerDecoderLayer(16, 4, scheme="deepnorm", num_layers=6)
        >>> round(layer.scales[0].skip_scale, 4)
        2.0598
        >>> layer(torch.zeros(5, 2, 16), torch.zeros(7, 2, 16)).shape
        torch.Size([5, 2, 16])
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Activation = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        scheme: str | Scheme | None = None,
        num_layers: int | Depth | None = None,
        layer_index: int | None = None,
        norm: str = "layer",
        recompute_activations: bool = True,
    ):
        options = LayerOptions(
            width=d_model, num_heads=nhead, hidden=dim_feedforward, dropout=dropout, activation=activation,
            norm=norm, norm_eps=layer_norm_eps, batch_first=batch_first, bias=bias, device=device, dtype=dtype,
            recompute_activations=recompute_activations,
        )  # fmt: skip
        resolved = resolve_scheme(scheme, norm_first=norm_first)
        place = find_place(resolved, "decoder", num_layers=num_layers, layer_index=layer_index)
        super().__init__(options, place, attends_to_memory=True)

    def forward(  # type: ignore[override]
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | AttentionMask | None = None,
        memory_mask: Tensor | AttentionMask | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """As torch.nn's; ``tgt_is_causal=True`` without a mask is causal too.

        Raises:
            ValueError: the scheme's scales depend on depth, and this layer does not know it.
        """
        self.place.check_known(type(self).__name__)
        if tgt.dim() == 2:
            batch_dim = self.options.batch_dim
            masks = tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask
            hints = tgt_is_causal, memory_is_causal
            return self(tgt.unsqueeze(batch_dim), memory.unsqueeze(batch_dim), *masks, *hints).squeeze(batch_dim)
        sizes = self.options.mask_sizes(tgt)
        context = LayerContext(
            memory,
            mask=merge_masks(tgt_mask, tgt_key_padding_mask, is_causal=tgt_is_causal, **sizes),
            memory_mask=merge_masks(memory_mask, memory_key_padding_mask, is_causal=memory_is_causal, **sizes),
        )
        return self.run(tgt, context)
