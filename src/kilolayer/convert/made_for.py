"""Whether a model is the one a plan was made for, and still as it was then."""

from __future__ import annotations

from typing import Any

from torch import nn

from kilolayer.convert.carriers import Scaled
from kilolayer.convert.own_layers import own_layers
from kilolayer.convert.rewire import Rewired

Traits = dict[tuple[str, str], Any]
"""``("shape", name)`` of a parameter, or what a conversion left at a module, and its value."""


def made_for(model: nn.Module) -> Traits:
    """Names and shapes of a model's parameters, and what conversions have made of its modules."""
    found: Traits = {("shape", name): tuple(parameter.shape) for name, parameter in model.named_parameters()}
    for path, module in model.named_modules():
        if isinstance(module, Scaled):
            found["factor", path] = module.branch_scale
        if isinstance(module, Rewired):
            found["wiring", path] = len(module.entered) + len(module.left) + len(module.closed)
    found |= {("scales", path): (layer.scales, layer.place.depth) for path, layer in own_layers(model)}
    return found


def check_made_for(model: nn.Module, model_class: str, then: Traits) -> None:
    """Refuse a model that a plan was not made for.

    Raises:
        ValueError: another class, parameters that were not there or have another shape, or a model that was
            converted since.
    """
    if type(model).__name__ != model_class:
        this = f"this is a {type(model).__name__}"
        raise ValueError(f"the plan was made for another model, a {model_class}, {this}; plan this model anew")
    now = made_for(model)
    others = sorted(key for key in then.keys() | now.keys() if then.get(key) != now.get(key))
    if any(kind != "shape" for kind, _ in others):
        raise ValueError(f"this {model_class} was converted since the plan was made; plan it anew")
    for _, name in others:
        what = f"{name} is {_told(now, name)} here and {_told(then, name)} there"
        raise ValueError(f"the plan was made for another {model_class}: {what}; plan this model anew")


def _told(traits: Traits, name: str) -> str:
    return f"of shape {list(traits['shape', name])}" if ("shape", name) in traits else "missing"
