"""A stack of Transformer layers of one model: scales from its depth, one guard, one optional final norm."""

from __future__ import annotations

from torch import Tensor, nn

from kilolayer.nn.config import TransformerConfig
from kilolayer.nn.context import NO_CONTEXT, LayerContext
from kilolayer.nn.depth_guard import guard_depth
from kilolayer.nn.layer import TransformerLayer
from kilolayer.nn.layer_place import LayerPlace
from kilolayer.nn.layer_stack import run_layers
from kilolayer.schemes import Stack


class ModelStack(nn.Module):
    """The layers of one stack in turn, and the final norm where the scheme has one.

    Values are left to an initialisation plan.

    Shape: ``(batch, length, width) -> (batch, length, width)``.
    """

    def __init__(self, config: TransformerConfig, stack: Stack):
        super().__init__()
        scheme, depth, options = config.resolved_scheme, config.depth, config.layer_options
        self.depth_guard = guard_depth(self, scheme, depth)
        self.layers = nn.ModuleList()
        attends_to_memory = depth.branches_per_layer(stack) == 3
        for index in range(depth.num_layers(stack)):
            place = LayerPlace(scheme, stack, depth, index, is_given=True)
            self.layers.append(TransformerLayer(options, place, attends_to_memory=attends_to_memory))
        self.norm = options.build_norm() if scheme.final_norm else None
        self.checkpoint_every = config.checkpoint_every

    def forward(self, x: Tensor, context: LayerContext = NO_CONTEXT) -> Tensor:
        x = run_layers(
            self.layers,
            x,
            context,
            call=_call_layer,
            kind=TransformerLayer,
            checkpoint_every=self.checkpoint_every,
        )
        return x if self.norm is None else self.norm(x)


def _call_layer(layer: nn.Module, x: Tensor, context: LayerContext) -> Tensor:
    return layer(x, context)
