"""torch.nn.TransformerEncoder under any residual scheme."""

from __future__ import annotations

from torch import Tensor, nn

from kilolayer.nn.checkpointing import Segment, check_segment
from kilolayer.nn.context import LayerContext
from kilolayer.nn.depth_guard import guard_depth
from kilolayer.nn.encoder_layer import TransformerEncoderLayer
from kilolayer.nn.layer_stack import run_layers
from kilolayer.nn.masks import AttentionMask, merge_masks
from kilolayer.nn.template import build_layers, check_template


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

    Examples:
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
        check_template(encoder_layer, TransformerEncoderLayer)
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
        context = LayerContext(mask=merge_masks(mask, src_key_padding_mask, is_causal=bool(is_causal), **sizes))
        out = run_layers(
            self.layers,
            src,
            context,
            call=_call_encoder_layer,
            kind=TransformerEncoderLayer,
            checkpoint_every=self.checkpoint_every,
        )
        return out if self.norm is None else self.norm(out)


def _call_encoder_layer(layer: nn.Module, x: Tensor, context: LayerContext) -> Tensor:
    return layer(x, src_mask=context.mask)
