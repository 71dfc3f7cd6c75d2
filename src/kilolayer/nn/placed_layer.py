"""A Transformer layer that draws its values, guards its depth, and can be built again at another place."""

from __future__ import annotations

import dataclasses
from typing import TypeVar

from kilolayer.init import init_layer
from kilolayer.nn.depth_guard import DepthGuard, guard_depth
from kilolayer.nn.layer import TransformerLayer
from kilolayer.nn.layer_place import LayerPlace
from kilolayer.nn.options import LayerOptions

Layer = TypeVar("Layer", bound="PlacedLayer")


class PlacedLayer(TransformerLayer):
    """A :class:`~kilolayer.nn.layer.TransformerLayer` drawn from the plan of its scales, with a guard of its depth."""

    def __init__(self, options: LayerOptions, place: LayerPlace, *, attends_to_memory: bool = False):
        super().__init__(options, place, attends_to_memory=attends_to_memory)
        self.depth_guard: DepthGuard | None = None
        if place.depth is not None:
            self.depth_guard = guard_depth(self, place.scheme, place.depth)
        init_layer(self)


def rebuild_layer(template: Layer, place: LayerPlace) -> Layer:
    """A layer like ``template`` at another place, with values of its own, on the template's device.

    It has no depth guard: the stack it stands in has one for all its layers.
    """
    weight = template.linear1.weight
    options = dataclasses.replace(template.options, device=weight.device, dtype=weight.dtype)
    # Past the constructor of the template's class, which takes torch.nn's arguments.
    layer = type(template).__new__(type(template))
    PlacedLayer.__init__(layer, options, place, attends_to_memory=template.attends_to_memory)
    layer.depth_guard = None
    return layer.train(template.training)
