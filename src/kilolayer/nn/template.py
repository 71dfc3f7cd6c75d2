"""Stacks are built from a template layer, again and again, never by copying it."""

from __future__ import annotations

import dataclasses

from torch import nn

from kilolayer.nn.layer_place import as_depth
from kilolayer.nn.options import check_counts
from kilolayer.nn.placed_layer import Layer, rebuild_layer
from kilolayer.schemes import Depth


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


def check_template(layer: object, wanted: type[nn.Module]) -> None:
    """Raises ``TypeError`` unless a template is one of kilolayer's layers, which can be built again."""
    if not isinstance(layer, wanted):
        raise TypeError(
            f"{wanted.__name__} is built again for every layer of the stack, so it must be kilolayer's; got "
            f"{type(layer).__module__}.{type(layer).__name__}, use kilolayer.nn.{wanted.__name__}"
        )
