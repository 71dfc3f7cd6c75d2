"""torch.nn.TransformerDecoder under any residual scheme."""

from __future__ import annotations

from torch import Tensor, nn

from kilolayer.nn.checkpointing import Segment, check_segment
from kilolayer.nn.context import LayerContext
from kilolayer.nn.decoder_layer import TransformerDecoderLayer
from kilolayer.nn.depth_guard import guard_depth
from kilolayer.nn.layer_stack import run_layers
from kilolayer.nn.masks import AttentionMask, merge_masks
from kilolayer.nn.template import build_layers, check_template


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

    Examples:
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
        check_template(decoder_layer, TransformerDecoderLayer)
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


def _call_decoder_layer(layer: nn.Module, x: Tensor, context: LayerContext) -> Tensor:
    return layer(x, context.memory, tgt_mask=context.mask, memory_mask=context.memory_mask)
