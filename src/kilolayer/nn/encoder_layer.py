"""torch.nn.TransformerEncoderLayer under any residual scheme."""

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


class TransformerEncoderLayer(PlacedLayer):
    """Self-attention and feed-forward, with the arguments and state-dict keys of torch.nn's layer of this name.

    Under ``"post-ln"`` (the default) and ``"pre-ln"`` (``norm_first=True``) it computes what torch.nn's layer
    computes from the same state dict. Under every scheme it starts from its plan, Xavier normal times the
    scheme's gains, where torch.nn starts from other distributions.

    Args:
        d_model, nhead, dim_feedforward, dropout, layer_norm_eps, batch_first: as in torch.nn.
        norm_first, bias, device, dtype: as in torch.nn.
        activation: as in torch.nn, or ``"silu"`` or ``"swiglu"``.
        scheme: a scheme or its name.
        num_layers: layers of the stack this one will stand in, or the depth of both stacks; needed by a lone
            layer of a scheme whose scales depend on depth. A stack built from a template says it itself.
        layer_index: place in that stack, from 0; needed by schemes whose layers differ.
        norm: ``"layer"`` or ``"rms"``.
        recompute_activations: recompute norms and activations in the backward instead of storing them.

    Shape:
        - src: ``(length, batch, d_model)``, ``(batch, length, d_model)`` if ``batch_first``, or
          ``(length, d_model)``
        - output: as src

    Raises:
        ValueError: sizes that do not fit, unknown names; on the first forward, a depth that is not known.

    Examples:
        >>> layer = TransformerEncoderLayer(16, 4, scheme="deepnorm", num_layers=8)
        >>> layer.scales[0].skip_scale
        2.0
        >>> layer(torch.zeros(5, 2, 16)).shape
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
        place = find_place(resolved, "encoder", num_layers=num_layers, layer_index=layer_index)
        super().__init__(options, place)

    def forward(  # type: ignore[override]
        self,
        src: Tensor,
        src_mask: Tensor | AttentionMask | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """As torch.nn's; ``is_causal=True`` without a mask is causal too.

        Raises:
            ValueError: the scheme's scales depend on depth, and this layer does not know it.
        """
        self.place.check_known(type(self).__name__)
        if src.dim() == 2:
            batch_dim = self.options.batch_dim
            return self(src.unsqueeze(batch_dim), src_mask, src_key_padding_mask, is_causal).squeeze(batch_dim)
        mask = merge_masks(src_mask, src_key_padding_mask, is_causal=is_causal, **self.options.mask_sizes(src))
        return self.run(src, LayerContext(mask=mask))
