"""The initialisation plan of a whole model: Transformers of kilolayer and torch.nn, and deep MLPs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from kilolayer.init.base import BaseRule, get_base_rule
from kilolayer.init.deep_mlp import plan_deep_mlp
from kilolayer.init.plan import InitPlan, InitRow
from kilolayer.init.transformer import (
    TRANSFORMER_BASE,
    attends_to_memory,
    is_norm,
    is_transformer_layer,
    plan_layer,
    plan_norm,
)
from kilolayer.schemes import Depth, Scheme, Stack, get_scheme


@dataclass(frozen=True)
class PlacedAt:
    """A layer of a model and its place."""

    path: str
    layer: nn.Module
    depth: Depth
    stack: Stack
    layer_index: int


def plan_init(model: nn.Module, scheme: str | Scheme, *, base: str | None = None) -> InitPlan:
    """List parameter, fill, standard deviation and reason for a whole model under a scheme.

    Knows the layers of kilolayer and of torch.nn, alone, in stacks or inside another model, and
    :class:`kilolayer.nn.DeepMLP`. In a residual branch a matrix has ``std = gain(role) * base std``. Outside of
    the branches nothing is scaled but what the scheme says of embeddings and head: embeddings
    ``1/sqrt(width)``, other matrices their base, biases 0, norms the identity. What has no rule is kept as it
    is, and the plan says so.

    Args:
        model: the model; only shapes and names are read, so it may be on the meta device.
        scheme: a scheme or its name; its gains may differ from those of the scheme the model runs.
        base: ``"xavier"`` (the default), ``"kaiming"``, ``"lecun"``, ``"fixed-0.02"`` or ``"orthogonal"``. The
            default of a deep MLP is that of :func:`plan_deep_mlp`.

    Raises:
        TypeError: no model, or a scheme or base that is no name.
        ValueError: an unknown scheme or base, a model without any of these layers, or a lone layer of torch.nn
            under a scheme whose gains depend on depth.

    Examples:
        >>> layer = nn.TransformerEncoderLayer(16, 4, 64, batch_first=True)
        >>> plan = plan_init(nn.TransformerEncoder(layer, 8), "deepnorm")
        >>> round(plan.std("layers.0.linear1.weight"), 4), round(plan.std("layers.0.self_attn.in_proj_weight"), 4)
        (0.0559, 0.25)
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    scheme = scheme if isinstance(scheme, Scheme) else get_scheme(scheme)
    if {"input_projection", "blocks", "head"} <= {name for name, _ in model.named_children()}:
        plan = plan_deep_mlp(model, scheme)
        return plan if base is None else _with_base(model, plan, scheme, get_base_rule(base))
    rule = get_base_rule(TRANSFORMER_BASE if base is None else base)
    if is_transformer_layer(model) and _known_place(model) is None and scheme.uses_depth != "never":
        raise ValueError(
            f"scheme {scheme.name!r} takes its gains from the depth, and this {type(model).__name__} stands in no "
            "stack; plan the whole stack, or build the layer with kilolayer.nn and num_layers="
        )
    layers = list(find_layers(model))
    if not layers:
        raise ValueError(
            f"{type(model).__name__} holds no Transformer layer built as torch.nn's are and is no DeepMLP, so there "
            "is nothing a scheme could scale"
        )
    rows: dict[str, list[InitRow]] = {}
    for place in layers:
        scales = _scales(place, scheme)
        for row in plan_layer(place.layer, scales, base=rule, path=place.path):
            rows.setdefault(row.parameter, []).append(row)
    for row in _outside(model, layers, scheme, rule):
        rows.setdefault(row.parameter, []).append(row)
    return InitPlan(tuple(row for name, _ in model.named_parameters() for row in rows.get(name, [_kept(name)])))


def find_layers(model: nn.Module) -> Iterator[PlacedAt]:
    """Every Transformer layer of a model with its place, in order.

    kilolayer's layers know theirs. Those of torch.nn are counted: layers of one parent are a stack, a decoder
    if they attend to memory; one stack of each kind makes an encoder-decoder.
    """
    found = [(path, module) for path, module in model.named_modules() if is_transformer_layer(module)]
    stacks: dict[str, list[tuple[str, nn.Module]]] = {}
    for path, module in found:
        stacks.setdefault(path.rpartition(".")[0], []).append((path, module))
    counted = _count_depths(stacks)
    for parent, layers in stacks.items():
        for index, (path, layer) in enumerate(layers):
            place = _known_place(layer)
            if place is not None:
                yield PlacedAt(path, layer, place.depth, place.stack, place.layer_index)
            else:
                yield PlacedAt(path, layer, *counted[parent], index)


def _known_place(layer: nn.Module) -> Any:
    place: Any = getattr(layer, "place", None)
    return None if place is None or place.depth is None or place.layer_index is None else place


def _count_depths(stacks: dict[str, list[tuple[str, nn.Module]]]) -> dict[str, tuple[Depth, Stack]]:
    encoders = [parent for parent, layers in stacks.items() if not attends_to_memory(layers[0][1])]
    decoders = [parent for parent, layers in stacks.items() if attends_to_memory(layers[0][1])]
    counts = {parent: len(layers) for parent, layers in stacks.items()}
    depths: dict[str, tuple[Depth, Stack]] = {}
    for parent in decoders:
        beside = counts[encoders[0]] if len(encoders) == 1 else counts[parent]
        depths[parent] = (Depth(encoder_layers=beside, decoder_layers=counts[parent]), "decoder")
    for parent in encoders:
        beside = counts[decoders[0]] if len(encoders) == len(decoders) == 1 else 0
        depths[parent] = (Depth(encoder_layers=counts[parent], decoder_layers=beside), "encoder")
    return depths


def _scales(place: PlacedAt, scheme: Scheme) -> list[Any]:
    per_layer = place.depth.branches_per_layer(place.stack)
    first = place.layer_index * per_layer
    return [scheme.at(place.depth, first + index, place.stack) for index in range(per_layer)]


def _outside(model: nn.Module, layers: list[PlacedAt], scheme: Scheme, base: BaseRule) -> Iterator[InitRow]:
    """Rows for what stands outside of the layers."""
    inside = tuple(f"{place.path}." if place.path else "" for place in layers)
    for path, module in model.named_modules():
        if f"{path}.".startswith(inside):
            continue
        if is_norm(module):
            yield from plan_norm(module, path)
        elif isinstance(module, nn.Embedding):
            yield _embedding(module, path, layers, scheme)
        elif isinstance(module, nn.Linear):
            yield from _outer_linear(module, path, scheme, base)
        elif (std := getattr(module, "init_std", None)) is not None:
            for name, _ in module.named_parameters(recurse=False):
                yield InitRow(f"{path}.{name}", "normal", std, "positions")


def _embedding(module: nn.Embedding, path: str, layers: list[PlacedAt], scheme: Scheme) -> InitRow:
    depths = {(place.stack, place.depth) for place in layers}
    fed = {stack for stack, _ in depths if _feeds(path, stack)} or {stack for stack, _ in depths}
    # One table that feeds both stacks gets the smaller of the two gains.
    gain = min(scheme.embedding_gain(depth, stack) for stack, depth in depths if stack in fed)
    text = "embedding, 1/sqrt(width)" if gain == 1 else f"embedding, 1/sqrt(width) times the scheme's gain {gain:.4g}"
    return InitRow(f"{path}.weight", "normal", gain * module.embedding_dim**-0.5, text)


def _feeds(path: str, stack: Stack) -> bool:
    words = ("source", "src", "encoder") if stack == "encoder" else ("target", "tgt", "decoder")
    return any(word in path.lower() for word in words)


def _outer_linear(linear: nn.Linear, path: str, scheme: Scheme, base: BaseRule) -> Iterator[InitRow]:
    is_head = "head" in path.rpartition(".")[2]
    gain = scheme.head_gain if is_head else 1.0
    fans = linear.in_features, linear.out_features
    what = "output head" if is_head else "outside of the branches"
    yield base.row(f"{path}.weight", fans, gain=gain, what=what)
    if linear.bias is not None:
        yield InitRow(f"{path}.bias", "zeros", 0.0, "biases start at 0")


def _kept(name: str) -> InitRow:
    return InitRow(name, "keep", 0.0, "no rule for it: left as it is")


def _with_base(model: nn.Module, plan: InitPlan, scheme: Scheme, base: BaseRule) -> InitPlan:
    """A deep MLP's plan with another base rule for its matrices."""
    blocks = model.get_submodule("blocks")
    depth = Depth(encoder_layers=len(list(blocks.children())), encoder_branches_per_layer=1)
    rows = []
    for row in plan.rows:
        path = row.parameter.removesuffix(".weight")
        linear = model.get_submodule(path) if path != row.parameter else None
        if not isinstance(linear, nn.Linear):
            rows.append(row)
            continue
        gain = 1.0
        if ".branch.linear" in path:
            role = "feedforward_in" if path.endswith("1") else "feedforward_out"
            gain = scheme.at(depth, int(path.split(".")[1])).gain(role)
        rows.append(base.row(row.parameter, (linear.in_features, linear.out_features), gain=gain))
    return InitPlan(tuple(rows))
