"""Remedies of numerics: another precision, and operations kept away from where they are not finite."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from kilolayer.diagnosis.examined import Examined
from kilolayer.diagnosis.finding import Finding
from kilolayer.remedies.data import cast_batches
from kilolayer.remedies.operations import Call, edit_operations
from kilolayer.remedies.optimizers import each_group
from kilolayer.remedies.remedy import Edited, SetupLike, Unsuitable, module_at, optimizer_of
from kilolayer.remedies.weights import draw, fan_in

HALF_EPS = 1e-4
TINY = 1e-6


# ---------------------------------------------------------------------- precision
def _to(setup: SetupLike, dtype: torch.dtype) -> SetupLike:
    """Parameters keep being the same objects, so the optimizer trains on."""
    halves = [one for one in setup.model.parameters() if one.dtype in (torch.float16, torch.bfloat16)]
    if not halves:
        raise Unsuitable("no parameter is of half precision")
    setup.model.to(dtype)
    return cast_batches(setup, dtype)


def single_precision(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """Parameters and inputs in float32."""
    return Edited(_to(setup, torch.float32), "parameters and inputs in float32")


def single_patch(finding: Finding, found: Examined) -> str:
    """As code."""
    return (
        "model.float()  # parameters in float32; for speed:\n"
        "with torch.autocast(device_type, dtype=torch.bfloat16):\n    loss = loss_fn(model(inputs), targets)"
    )


def brain_float(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """Parameters and inputs in bfloat16, which has the range of float32."""
    if not any(one.dtype == torch.float16 for one in setup.model.parameters()):
        raise Unsuitable("no parameter is of float16")
    return Edited(_to(setup, torch.bfloat16), "float16 -> bfloat16")


def brain_patch(finding: Finding, found: Examined) -> str:
    """As code."""
    return "model.to(torch.bfloat16)\ninputs = inputs.to(torch.bfloat16)"


def larger_eps(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """The optimizer's eps at 1e-4, which half precision can tell from 0."""
    groups = optimizer_of(setup).param_groups
    if not all("eps" in group for group in groups):
        raise Unsuitable("the optimizer has no eps")
    before = min(group["eps"] for group in groups)
    if before >= HALF_EPS:
        raise Unsuitable(f"eps is {before:g} already")
    each_group(setup, lambda group: group.update(eps=max(group["eps"], HALF_EPS)))
    return Edited(setup, f"eps {before:g} -> {HALF_EPS:g}")


def eps_patch(finding: Finding, found: Examined) -> str:
    """As code."""
    return f"for group in optimizer.param_groups:\n    group['eps'] = {HALF_EPS:g}  # or where it is built"


# ---------------------------------------------------------------------- operations that make NaN
def _away_from_zero(tensor: Tensor) -> Tensor:
    return tensor.clamp_min(TINY)


def _nonzero(tensor: Any) -> Any:
    if not isinstance(tensor, Tensor):
        return tensor
    return torch.where(tensor.abs() < TINY, torch.full_like(tensor, TINY), tensor)


def _guard_second(call: Call) -> Any:
    return call.func(call.args[0], _nonzero(call.args[1]), *call.args[2:], **call.kwargs)


def _finite_mask(call: Call) -> Any:
    tensor = call.tensor
    return call.run_on(tensor.masked_fill(tensor == -math.inf, torch.finfo(tensor.dtype).min / 2))


def _finite_scores(call: Call) -> Any:
    """Softmax of finite scores; of attention that torch does in one piece, the masks of its scores."""
    if call.name == "softmax":
        return _finite_mask(call)
    query = call.tensor
    masks = {key: call.kwargs.get(key) for key in ("attn_mask", "key_padding_mask")}
    return call.run(**{key: _finite(mask, query) for key, mask in masks.items() if isinstance(mask, Tensor)})


def _finite(mask: Tensor, query: Tensor) -> Tensor:
    # Two masks are added, so each gets half of the way to the lowest number.
    low = torch.finfo(query.dtype).min / 4
    if mask.dtype == torch.bool:
        return torch.zeros_like(mask, dtype=query.dtype).masked_fill(mask, low)
    return mask.masked_fill(mask == -math.inf, low)


_Guard = Callable[[Call], Any]

GUARDS: dict[str, tuple[tuple[str, ...], _Guard, str, str]] = {
    "softmax": (("softmax", "multi_head_attention_forward"), _finite_scores, "large negative numbers instead of -inf",
                "scores = scores.masked_fill(mask, torch.finfo(scores.dtype).min / 2)  # not -inf"),
    "log": (("log", "log2", "log10"), lambda call: call.run_on(_away_from_zero(call.tensor)),
            f"the argument of the logarithm kept above {TINY:g}", f"torch.log(x.clamp_min({TINY:g}))"),
    "sqrt": (("sqrt", "rsqrt"), lambda call: call.run_on(_away_from_zero(call.tensor)),
             f"the argument of the root kept above {TINY:g}", f"torch.sqrt(x.clamp_min({TINY:g}))"),
    "div": (("div", "true_divide", "__truediv__"), _guard_second, f"the divisor kept {TINY:g} away from 0",
            f"x / (y + {TINY:g})"),
    "pow": (("pow", "__pow__"), lambda call: call.run_on(_away_from_zero(call.tensor)),
            f"the base kept above {TINY:g}", f"x.clamp_min({TINY:g}) ** power"),
    "reciprocal": (("reciprocal", "__rdiv__", "__rtruediv__"), lambda call: call.run_on(_nonzero(call.tensor)),
                   f"the divisor kept {TINY:g} away from 0", f"1 / (x + {TINY:g})"),
    "std": (("std",), lambda call: call.tensor.var(*call.args[1:], **call.kwargs).add(TINY).sqrt(),
            f"{TINY:g} added to the variance", f"x.var(dim).add({TINY:g}).sqrt()  # not x.std(dim)"),
    "acos": (("acos", "asin"), lambda call: call.run_on(call.tensor.clamp(-1 + TINY, 1 - TINY)),
             "the argument kept within (-1, 1)", f"torch.acos(x.clamp(-1 + {TINY:g}, 1 - {TINY:g}))"),
}  # fmt: skip
"""ATen's name of an operation -> functions to guard, how, in words, and as code."""

SAME_AS = {
    "_softmax": "softmax", "_safe_softmax": "softmax", "baddbmm": "softmax",
    "log2": "log", "log10": "log", "rsqrt": "sqrt", "asin": "acos",
}  # fmt: skip


def _guard(found: Examined) -> tuple[tuple[str, ...], _Guard, str, str] | None:
    operation = "" if found.fault is None else str(found.fault["operation"])
    return GUARDS.get(SAME_AS.get(operation, operation))


def guard_operation(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """Keep the operation that made the first NaN away from where it does, in the code of its module."""
    guard = _guard(found)
    if guard is None:
        operation = "an unknown operation" if found.fault is None else found.fault["operation"]
        raise Unsuitable(f"nothing is known to keep {operation} finite")
    names, do, what, _ = guard
    path = finding.first_site or ""

    def change(call: Call) -> Any:
        return do(call) if call.name in names and call.path == path else call.run()

    return Edited(edit_operations(setup, change), what)


def guard_patch(finding: Finding, found: Examined) -> str:
    """As code."""
    guard = _guard(found)
    where = f"# at {finding.first_site}:\n" if finding.first_site else ""
    return f"{where}{'x = torch.nan_to_num(x)' if guard is None else guard[3]}"


def draw_zero_directions(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """Where a matrix of 0 is divided by its own norm: draw it, and start its gain at 0, so that outputs stay 0."""
    path = (finding.first_site or "").partition(".parametrizations")[0]
    module = module_at(setup.model, path)
    parts = getattr(getattr(module, "parametrizations", None), "weight", None)
    gain, direction = getattr(parts, "original0", None), getattr(parts, "original1", None)
    gain = getattr(module, "weight_g", None) if gain is None else gain
    direction = getattr(module, "weight_v", None) if direction is None else direction
    if not isinstance(gain, nn.Parameter) or not isinstance(direction, nn.Parameter) or bool(direction.any()):
        raise Unsuitable("no weight of 0 is divided by its norm there")
    draw(direction, fan_in(direction) ** -0.5)
    gain.data.zero_()
    return Edited(setup, f"the direction of {path}'s weight drawn at random, its length 0")


def zero_directions_patch(finding: Finding, found: Examined) -> str:
    """As code."""
    return (
        "linear = weight_norm(linear)  # with its weight drawn at random; then, for outputs of 0:\n"
        "nn.init.zeros_(linear.parametrizations.weight.original0)"
    )
