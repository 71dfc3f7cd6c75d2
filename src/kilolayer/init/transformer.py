"""The initialisation plan of a Transformer layer, kilolayer's or torch.nn's: which role gets which gain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn

from kilolayer.init.base import BaseRule, get_base_rule
from kilolayer.init.plan import InitPlan, InitRow, apply_init
from kilolayer.schemes import BranchScales

TRANSFORMER_BASE = "xavier"

ATTENTION_TEXT = {"self_attn": "self-attention", "multihead_attn": "cross-attention"}


def is_transformer_layer(module: nn.Module) -> bool:
    """Whether a module is built as torch.nn's layers are: packed self-attention, ``linear1``, ``linear2``."""
    attention = getattr(module, "self_attn", None)
    has_matrices = all(isinstance(getattr(module, name, None), nn.Linear) for name in ("linear1", "linear2"))
    return has_matrices and getattr(attention, "in_proj_weight", None) is not None


def attends_to_memory(layer: nn.Module) -> bool:
    """Whether a layer has cross-attention."""
    return getattr(layer, "multihead_attn", None) is not None


def init_layer(layer: nn.Module, *, base: str = TRANSFORMER_BASE) -> None:
    """Draw the parameters of one of kilolayer's layers from the plan of its own scales.

    Examples:
        >>> import kilolayer as kl
        >>> layer = kl.nn.TransformerEncoderLayer(64, 4, 256, scheme="deepnorm", num_layers=100)
        >>> init_layer(layer)
        >>> round(layer.linear1.weight.std().item(), 3)  # 0.188 times sqrt(2 / (64 + 256))
        0.015
    """
    scales: Any = layer.scales
    rows = list(plan_layer(layer, scales, base=get_base_rule(base)))
    planned = {row.parameter for row in rows}
    rows += [
        InitRow(name, "keep", 0.0, "a part that initialises itself")
        for name, _ in layer.named_parameters()
        if name not in planned
    ]
    apply_init(layer, InitPlan(tuple(rows)))


def plan_layer(
    layer: nn.Module, scales: Sequence[BranchScales], *, base: BaseRule, path: str = ""
) -> Iterator[InitRow]:
    """Rows for the matrices, biases, norms and trained scales of one layer.

    The value rows of a packed ``in_proj_weight``, ``out_proj``, ``linear1`` and ``linear2`` get the gains of
    their roles; the query and key rows and the gate rows of a gated ``linear1`` get theirs, 1 under most
    schemes. Each part of a packed matrix has its own fans.

    Examples:
        >>> import kilolayer as kl
        >>> from kilolayer.init import get_base_rule
        >>> layer = kl.nn.TransformerEncoderLayer(8, 2, 16, scheme="deepnorm", num_layers=24)
        >>> scheme, depth = kl.schemes.get_scheme("deepnorm"), kl.schemes.Depth(encoder_layers=24)
        >>> scales = [scheme.at(depth, index) for index in (0, 1)]
        >>> next(plan_layer(layer, scales, base=get_base_rule("xavier"))).reason
        'self-attention query: Xavier normal, sqrt(2/(fan_in+fan_out))'
    """
    prefix = f"{path}." if path else ""
    names = ["self_attn", "multihead_attn"] if attends_to_memory(layer) else ["self_attn"]
    for name, branch in zip(names, scales, strict=False):
        yield from _attention(layer.get_submodule(name), f"{prefix}{name}", branch, base, ATTENTION_TEXT[name])
    yield from _feed_forward(layer, prefix, scales[-1], base)
    for name, module in layer.named_modules():
        if is_norm(module):
            yield from plan_norm(module, f"{prefix}{name}")
    yield from _trained_scales(layer, prefix, scales)


def _attention(attention: nn.Module, path: str, scales: BranchScales, base: BaseRule, text: str) -> Iterator[InitRow]:
    weight: Any = attention.in_proj_weight
    out_proj: Any = attention.out_proj
    rows, width = weight.shape
    query_rows = out_proj.in_features
    kv_rows = (rows - query_rows) // 2
    first = 0
    for role, count in (("query", query_rows), ("key", kv_rows), ("value", kv_rows)):
        yield base.row(
            f"{path}.in_proj_weight",
            (width, count),
            gain=scales.gain(role),
            what=f"{text} {role}",
            part=(first, first + count),
        )
        first += count
    if getattr(attention, "in_proj_bias", None) is not None:
        yield _zero_bias(f"{path}.in_proj_bias")
    yield from _linear(out_proj, f"{path}.out_proj", scales.gain("attention_out"), base, f"{text} output")


def _feed_forward(layer: nn.Module, prefix: str, scales: BranchScales, base: BaseRule) -> Iterator[InitRow]:
    linear1, linear2 = layer.get_submodule("linear1"), layer.get_submodule("linear2")
    assert isinstance(linear1, nn.Linear)
    assert isinstance(linear2, nn.Linear)
    hidden, width, name = linear2.in_features, linear1.in_features, f"{prefix}linear1"
    gain = scales.gain("feedforward_in")
    if linear1.out_features == 2 * hidden:
        fans, gate = (width, hidden), scales.gain("feedforward_gate")
        yield base.row(f"{name}.weight", fans, gain=gain, what="feed-forward up", part=(0, hidden))
        yield base.row(f"{name}.weight", fans, gain=gate, what="feed-forward gate", part=(hidden, 2 * hidden))
        if linear1.bias is not None:
            yield _zero_bias(f"{name}.bias")
    else:
        yield from _linear(linear1, name, gain, base, "feed-forward in")
    yield from _linear(linear2, f"{prefix}linear2", scales.gain("feedforward_out"), base, "feed-forward out")


def _linear(linear: Any, path: str, gain: float, base: BaseRule, text: str) -> Iterator[InitRow]:
    yield base.row(f"{path}.weight", (linear.in_features, linear.out_features), gain=gain, what=text)
    if linear.bias is not None:
        yield _zero_bias(f"{path}.bias")


def _trained_scales(layer: nn.Module, prefix: str, scales: Sequence[BranchScales]) -> Iterator[InitRow]:
    own = {name for name, _ in layer.named_parameters(recurse=False)}
    initial = {"branch_scale": scales[0].branch_scale}
    for number, branch in enumerate(scales, start=1):
        initial |= {f"branch_scale{number}": branch.branch_scale, f"skip_scale{number}": branch.skip_scale}
    for name, value in initial.items():
        if name in own:
            what = "branch" if name.startswith("branch") else "skip"
            yield InitRow(f"{prefix}{name}", "constant", 0.0, f"the scheme's first {what} scale, trained", value=value)


def is_norm(module: nn.Module) -> bool:
    """Whether a module is a norm with a gain, by type or by name."""
    return isinstance(module, (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.modules.batchnorm._NormBase)) or (
        type(module).__name__.endswith("Norm")
    )


def plan_norm(norm: nn.Module, path: str) -> Iterator[InitRow]:
    """Gain 1 and bias 0."""
    prefix = f"{path}." if path else ""
    for name, _ in norm.named_parameters(recurse=False):
        fill = "zeros" if name == "bias" else "ones"
        yield InitRow(f"{prefix}{name}", fill, 0.0, "norms start at the identity")


def _zero_bias(parameter: str) -> InitRow:
    return InitRow(parameter, "zeros", 0.0, "biases start at 0")
