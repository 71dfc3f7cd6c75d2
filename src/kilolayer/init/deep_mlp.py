"""The initialisation plan of a deep MLP under any scheme."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import nn

from kilolayer.init.plan import InitPlan, InitRow
from kilolayer.schemes import BranchScales, Depth, Scheme

RELU_GAIN = math.sqrt(2.0)
"""He et al. 2015: ReLU halves the second moment, so the matrix behind it carries the other factor 2."""

CHAIN_GAINS = {"kaiming": RELU_GAIN, "lecun": 1.0}
"""Gains of the one matrix of a block without skip; `lecun` forgets the factor ReLU takes."""


def plan_deep_mlp(model: nn.Module, scheme: Scheme, *, chain_init: str = "kaiming") -> InitPlan:
    """Plan the parameters of a :class:`kilolayer.nn.DeepMLP`.

    The input projection is Kaiming, ``std = sqrt(2 / fan_in)``, the head ``1 / sqrt(fan_in)``. In a block
    without skip the matrix has ``std = gain / sqrt(fan_in)``, gain ``sqrt(2)`` (``chain_init="kaiming"``) or 1
    (``"lecun"``). In a residual branch the first matrix is Kaiming and the last ``1 / sqrt(fan_in)``, both
    times the scheme's ``init_gain``, the last also times its ``last_init_gain``. Biases start at 0, norms at
    the identity.

    Raises:
        ValueError: unknown ``chain_init``.

    Examples:
        >>> import kilolayer as kl
        >>> model = kl.nn.build_deep_mlp(scheme="residual-scaled", num_blocks=50, width=16,
        ...                              in_features=8, num_classes=4)
        >>> plan = plan_deep_mlp(model, kl.schemes.get_scheme("residual-scaled"))
        >>> plan.rows[0].parameter, plan.rows[0].std
        ('input_projection.weight', 0.5)
    """
    if chain_init not in CHAIN_GAINS:
        raise ValueError(f"chain_init {chain_init!r} is unknown; use one of {', '.join(CHAIN_GAINS)}")
    blocks = model.get_submodule("blocks")
    depth = Depth(encoder_layers=len(list(blocks.children())), encoder_branches_per_layer=1)
    rows = _linear(model, "input_projection", RELU_GAIN, "Kaiming, sqrt(2/fan_in)")
    for name, block in blocks.named_children():
        path, scales = f"blocks.{name}", scheme.at(depth, int(name))
        rows += _branch(model, path, scales) if scales.has_skip else _chain(model, path, CHAIN_GAINS[chain_init])
        rows += [
            row
            for child, module in block.named_modules()
            if child.endswith("_norm") or child == "norm"
            for row in _norm(module, f"{path}.{child}")
        ]
        rows += _trained_scales(block, path, scales)
    if "final_norm" in dict(model.named_children()):
        rows += _norm(model.get_submodule("final_norm"), "final_norm")
    head = "LeCun, 1/sqrt(fan_in)" if scheme.head_gain else "the scheme starts the head at zero"
    return InitPlan((*rows, *_linear(model, "head", scheme.head_gain, head)))


def _chain(model: nn.Module, path: str, gain: float) -> list[InitRow]:
    reason = "Kaiming, sqrt(2/fan_in)" if gain == RELU_GAIN else "LeCun, 1/sqrt(fan_in)"
    return _linear(model, f"{path}.linear", gain, reason)


def _branch(model: nn.Module, path: str, scales: BranchScales) -> list[InitRow]:
    first, last = scales.gain("feedforward_in"), scales.gain("feedforward_out")
    return [
        *_linear(model, f"{path}.branch.linear1", RELU_GAIN * first, f"Kaiming, sqrt(2/fan_in){_times(first)}"),
        *_linear(model, f"{path}.branch.linear2", last, f"LeCun, 1/sqrt(fan_in){_times(last)}"),
    ]


def _times(gain: float) -> str:
    return "" if gain == 1 else f", times the scheme's gain {gain:.4g}"


def _linear(model: nn.Module, path: str, gain: float, reason: str) -> list[InitRow]:
    linear = model.get_submodule(path)
    assert isinstance(linear, nn.Linear)
    std = gain / math.sqrt(linear.in_features)
    return [
        InitRow(f"{path}.weight", "normal" if std else "zeros", std, reason),
        InitRow(f"{path}.bias", "zeros", 0.0, "biases start at 0"),
    ]


def _trained_scales(block: nn.Module, path: str, scales: BranchScales) -> Iterator[InitRow]:
    """Rows of the scales that are parameters of the block."""
    for name, _ in block.named_parameters(recurse=False):
        what = name.removesuffix("_scale")
        value = getattr(scales, name)
        yield InitRow(f"{path}.{name}", "constant", 0.0, f"the scheme's first {what} scale, trained", value=value)


def _norm(norm: nn.Module, path: str) -> Iterator[InitRow]:
    for name, _ in norm.named_parameters():
        yield InitRow(
            f"{path}.{name}", "zeros" if name.endswith("bias") else "ones", 0.0, "norms start at the identity"
        )
