"""kilolayer's own Transformer layers: their branches, and how they take another skip scale."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from torch import nn

from kilolayer.convert.branches import Ending, FoundBranch, Matrix, Network, Refusal
from kilolayer.convert.plan import ConversionPlan
from kilolayer.nn.depth_guard import DepthGuard, guard_depth
from kilolayer.nn.fused_layer import has_plain_branches
from kilolayer.nn.layer import TransformerLayer
from kilolayer.nn.layer_place import LayerPlace
from kilolayer.schemes import Depth, Role, Scheme, Stack


def own_layers(model: nn.Module) -> list[tuple[str, TransformerLayer]]:
    """kilolayer's layers in a model, with their paths."""
    return [(path, module) for path, module in model.named_modules() if isinstance(module, TransformerLayer)]


def read_own_network(model: nn.Module) -> Network:
    """The residual branches of kilolayer's layers, read from what they hold.

    Raises:
        Refusal: a layer that does not know its depth, or layers of networks of different depths.
    """
    branches = [branch for path, layer in own_layers(model) for branch in _branches(path, layer)]
    depths = {layer.place.depth for _, layer in own_layers(model) if layer.place.scheme.uses_depth != "never"}
    if len(depths) > 1:
        raise Refusal(f"{type(model).__name__} holds layers of different depths: {depths}; convert each stack alone")
    depth = _counted_depth(model) if not depths or None in depths else depths.pop()
    assert depth is not None
    return Network(depth, tuple(branches), _final_norms(model))


def _counted_depth(model: nn.Module) -> Depth:
    counts: dict[Stack, int] = {"encoder": 0, "decoder": 0}
    cross = False
    for _, layer in own_layers(model):
        counts[layer.place.stack] += 1
        cross = cross or layer.attends_to_memory
    if cross and not counts["encoder"]:
        counts["encoder"] = counts["decoder"]
    return Depth(encoder_layers=counts["encoder"], decoder_layers=counts["decoder"])


def _final_norms(model: nn.Module) -> dict[Stack, str | None]:
    found: dict[Stack, str | None] = {}
    for path, layer in own_layers(model):
        stack_path = path.rpartition(".layers.")[0] if ".layers." in path else ""
        stack = model.get_submodule(stack_path)
        norm = getattr(stack, "norm", None)
        prefix = f"{stack_path}." if stack_path else ""
        found.setdefault(layer.place.stack, f"{prefix}norm" if isinstance(norm, nn.Module) else None)
    return found


def _branches(path: str, layer: TransformerLayer) -> Iterator[FoundBranch]:
    prefix = f"{path}." if path else ""
    count = len(layer.scales)
    index = layer.place.layer_index or 0
    for number, scales in enumerate(layer.scales, start=1):
        last = f"{prefix}{_last_matrix(layer, number)}"
        slots = {slot: name for (slot, at), name in layer.norm_names.items() if at == number}
        post = layer.norm_in("post", number)
        yield FoundBranch(
            path=path,
            stack=layer.place.stack,
            branch_index=index * count + number - 1,
            layer_index=index,
            kind="identity" if scales.has_skip and not scales.layer_skip_scale else "long",
            norm_placement=scales.norm_placement,
            norm_kind=layer.options.norm if slots else None,
            skip_scale="learned" if scales.skip_learned else scales.skip_scale,
            branch_scale="learned" if scales.learned else scales.branch_scale,
            has_attention=number < count,
            is_cross_attention=layer.attends_to_memory and number == 2,
            norms={slot: f"{prefix}{name}" for slot, name in slots.items()},
            eps=None if post is None else getattr(post, "eps", None),
            ending=Ending(tuple(_with_bias(layer, last, path)), None),
            matrices=tuple(_matrices(layer, number, prefix)),
        )


def _last_matrix(layer: TransformerLayer, number: int) -> str:
    if number == len(layer.scales):
        return "linear2"
    return "self_attn.out_proj" if number == 1 else "multihead_attn.out_proj"


def _with_bias(layer: TransformerLayer, last: str, path: str) -> Iterator[str]:
    yield f"{last}.weight"
    inner = last.removeprefix(f"{path}." if path else "")
    if getattr(layer.get_submodule(inner), "bias", None) is not None:
        yield f"{last}.bias"


def _matrices(layer: TransformerLayer, number: int, prefix: str) -> Iterator[Matrix]:
    last = _last_matrix(layer, number)
    out_bias = f"{prefix}{last}.bias" if layer.get_submodule(last).bias is not None else None
    if number < len(layer.scales):
        name = last.rpartition(".")[0]
        attention: Any = layer.get_submodule(name)
        first = 0
        kv_rows = attention.num_kv_heads * attention.head_dim
        bias = f"{prefix}{name}.in_proj_bias" if attention.in_proj_bias is not None else None
        roles: tuple[tuple[Role, int], ...] = (("query", attention.embed_dim), ("key", kv_rows), ("value", kv_rows))
        for role, rows in roles:
            yield Matrix(role, f"{prefix}{name}.in_proj_weight", bias, (first, first + rows))
            first += rows
        yield Matrix("attention_out", f"{prefix}{last}.weight", out_bias)
        return
    weight, in_bias = f"{prefix}linear1.weight", f"{prefix}linear1.bias" if layer.linear1.bias is not None else None
    hidden = layer.linear2.in_features
    if layer.options.is_gated:
        yield Matrix("feedforward_in", weight, in_bias, (0, hidden))
        yield Matrix("feedforward_gate", weight, in_bias, (hidden, 2 * hidden))
    else:
        yield Matrix("feedforward_in", weight, in_bias)
    yield Matrix("feedforward_out", f"{prefix}{last}.weight", out_bias)


def place_under(model: nn.Module, plan: ConversionPlan) -> None:
    """Give kilolayer's layers the scales of a scheme, the norms their eps, and the stacks their depth guard."""
    eps = {change.norm: change.new_eps for change in plan.changes if change.norm is not None}
    eps_of_layer = {}
    for path, layer in own_layers(model):
        place = dataclasses.replace(layer.place, scheme=plan.scheme, depth=plan.depth, is_given=True)
        place = dataclasses.replace(place, layer_index=layer.place.layer_index or 0)
        layer.place = place
        layer.scales = place.scales(len(layer.scales))
        layer.has_plain_branches = has_plain_branches(layer.options, layer.scales)
        _set_eps(layer, path, eps)
        norm: Any = layer.norm1
        layer.options = dataclasses.replace(layer.options, norm_eps=norm.eps)
        eps_of_layer[layer.place.stack] = layer.options.norm_eps
    _guard(model, plan.scheme, plan.depth)
    _restate(model, plan, eps_of_layer)


def _set_eps(layer: TransformerLayer, path: str, eps: dict[str, float | None]) -> None:
    prefix = f"{path}." if path else ""
    for name in layer.norm_names.values():
        value = eps.get(f"{prefix}{name}")
        if value is not None:
            layer.get_submodule(name).eps = value  # type: ignore[assignment]


def _guard(model: nn.Module, scheme: Scheme, depth: Depth) -> None:
    """Every stack, and every layer that stands alone, keeps the depth its scales come from."""
    for path, module in model.named_modules():
        if not _is_stack(module) and not (isinstance(module, TransformerLayer) and _stands_alone(model, path)):
            continue
        if scheme.uses_depth != "forward":
            module.depth_guard = None
        elif isinstance(getattr(module, "depth_guard", None), DepthGuard):
            module.depth_guard = DepthGuard(depth)
        else:
            guard = guard_depth(module, scheme, depth)
            assert guard is not None
            module.depth_guard = guard


def _is_stack(module: nn.Module) -> bool:
    layers = getattr(module, "layers", None)
    return isinstance(layers, nn.ModuleList) and any(isinstance(layer, TransformerLayer) for layer in layers)


def _stands_alone(model: nn.Module, path: str) -> bool:
    parent, _, name = path.rpartition(".")
    if not name.isdigit():
        return True
    grandparent = model.get_submodule(parent.rpartition(".")[0])
    return not _is_stack(grandparent)


def _restate(model: nn.Module, plan: ConversionPlan, eps: dict[Stack, float]) -> None:
    """What stacks and models say of themselves, so that they can be built again as they are."""
    for module in model.modules():
        if _is_stack(module) and hasattr(module, "options"):
            module.options = module.layers[0].options  # type: ignore[index, union-attr]
        config: Any = getattr(module, "config", None)
        if dataclasses.is_dataclass(config) and hasattr(config, "scheme") and not isinstance(config, type):
            norm_eps = next(iter(eps.values()))
            changes = {"skip_scale": None, "skip_scale_is_meant": False, "norm_eps": norm_eps}
            scheme = plan.scheme if plan.scheme.rule not in (None, "deepnet") else plan.scheme.name
            own: Any = module
            own.config = dataclasses.replace(config, scheme=scheme, **changes)


def new_place(place: LayerPlace, *, depth: Depth, layer_index: int) -> LayerPlace:
    """A place in a stack of another depth."""
    return dataclasses.replace(place, depth=depth, layer_index=layer_index, is_given=True)
