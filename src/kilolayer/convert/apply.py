"""Apply a conversion, verify it, and put the model back if it does not hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from kilolayer.convert.branches import Refusal
from kilolayer.convert.carriers import carry, close_fast_paths, multiply
from kilolayer.convert.example_inputs import example_inputs
from kilolayer.convert.made_for import check_made_for
from kilolayer.convert.optimizers import as_optimizers, repoint, rescale_state
from kilolayer.convert.own_layers import place_under
from kilolayer.convert.plan import Conversion, ConversionPlan
from kilolayer.convert.snapshot import Snapshot
from kilolayer.convert.verify import (
    check_has_values,
    check_unwrapped,
    check_verifiable,
    largest_difference,
    run_all,
    tolerance_of,
)

ROUNDINGS = 4
"""Scaling a weight, multiplying with it and scaling the product back round about this many times."""


def apply_conversion(
    model: nn.Module,
    plan: ConversionPlan,
    *,
    inputs: Any = None,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
) -> Conversion:
    """Change a model in place as a plan says, verify that its outputs stayed, and return what was done.

    The model runs on random inputs, where they can be drawn, and on the given ones, before and behind, in evaluation
    mode and its own dtype. Outputs may differ by 1e-5 in float32 and 1e-12 in float64, relative to the largest one
    where that is above 1. A model whose own rounding moves its outputs further may differ by a few times
    that: it is measured, by moving each weight by its last digit, and stands in the result's ``tolerance``. If outputs
    differ more, or anything fails, the model is put back to the bit.

    Args:
        model: the model the plan was made for.
        plan: from :func:`plan_conversion`.
        inputs: further inputs to verify with; those of the plan are used anyway.
        optimizer: trains the model, or several that do; what it remembers of rescaled parameters is rescaled, and it
            goes on with the parameters the model has then.

    Raises:
        TypeError: no plan, or an optimizer that is none.
        ValueError: a plan for another model, or one that was converted since; an optimizer that trains another; no
            inputs to verify with, or outputs that are no numbers; as :class:`~kilolayer.convert.Refusal`, a conversion
            whose outputs differ.

    Examples:
        >>> from kilolayer import plan_conversion
        >>> model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 64, batch_first=True), 8)
        >>> done = apply_conversion(model, plan_conversion(model, "deepnorm"))
        >>> done.max_difference <= done.tolerance
        True
    """
    if not isinstance(plan, ConversionPlan):
        raise TypeError(f"plan must be a ConversionPlan, got {type(plan).__name__}; make one with plan_conversion")
    check_made_for(model, plan.model_class, plan.made_for)
    check_has_values(model)
    optimizers = as_optimizers(optimizer, model)
    if plan.form == "rewired":
        check_unwrapped(model)
    if plan.form == "rewired" or plan.init is not None:
        from kilolayer.convert.fresh import apply_fresh

        done = apply_fresh(model, plan, optimizers=optimizers)
        _record(model, plan)
        return done
    samples = _samples(model, plan, inputs)
    before = run_all(model, samples)
    check_verifiable(before, type(model).__name__)
    old = dict(model.named_parameters())
    with Snapshot(model, _scaled_parameters(plan)) as snapshot:
        try:
            change_in_place(model, plan)
            difference, tolerance = largest_difference(before, run_all(model, samples)), tolerance_of(model)
            if not difference <= tolerance:
                snapshot.restore()
                tolerance = max(tolerance, ROUNDINGS * _rounding_noise(model, plan, samples, before))
                snapshot.restore()
                _check(plan, difference, tolerance)
                change_in_place(model, plan)
        except BaseException:
            snapshot.restore()
            raise
    _record(model, plan)
    if optimizers:
        _carry_over(model, plan, optimizers, old)
    return Conversion(plan, dict(plan.names), difference, tolerance)


def _check(plan: ConversionPlan, difference: float, tolerance: float) -> None:
    if not difference <= tolerance:
        raise Refusal(
            f"the converted {plan.model_class} differs by {difference:.2e} from what it was, more than "
            f"{tolerance:.1e}; it was put back"
        )


@torch.no_grad()
def _rounding_noise(
    model: nn.Module, plan: ConversionPlan, samples: Sequence[Any], before: Sequence[Sequence[Tensor]]
) -> float:
    """How far the outputs move when each scaled weight moves by its last digit, as any computation does to it."""
    generator = torch.Generator().manual_seed(0)
    for name in _scaled_parameters(plan):
        parameter = model.get_parameter(name)
        signs = torch.randint(0, 2, parameter.shape, generator=generator).to(parameter) * 2 - 1
        parameter.add_(parameter * signs * torch.finfo(parameter.dtype).eps)
    return largest_difference(before, run_all(model, samples))


def _samples(model: nn.Module, plan: ConversionPlan, inputs: Any) -> list[Any]:
    drawn = [example_inputs(model, seed=1)]
    samples = [one for one in [*drawn, plan.inputs, inputs] if one is not None]
    if not samples:
        raise ValueError(f"nothing says what {type(model).__name__} takes; pass inputs= to verify with")
    return samples


def _scaled_parameters(plan: ConversionPlan) -> Iterable[str]:
    return (name for change in plan.changes if change.factor != 1.0 for name in change.parameters)


def change_in_place(model: nn.Module, plan: ConversionPlan) -> None:
    """Do what a plan that keeps the function says, without verifying anything."""
    for change in plan.changes:
        for name in change.parameters:
            if change.factor != 1.0:
                multiply(model, name, change.factor)
        if plan.form == "carried":
            carry(model, change)
    if plan.form == "kilolayer":
        place_under(model, plan)
    else:
        close_fast_paths(model)


def _record(model: nn.Module, plan: ConversionPlan) -> None:
    """Say in Hugging Face configs what the model is, so that it can be made so again when it is loaded."""
    if plan.form == "kilolayer":
        return
    for config in configs_around(model, [change.norm or change.path for change in plan.changes]):
        if plan.scheme.name == "post-ln" and plan.form == "carried":
            if hasattr(config, "kilolayer"):
                del config.kilolayer
        else:
            config.kilolayer = scheme_entry(plan)


def configs_around(model: nn.Module, paths: Iterable[str]) -> list[Any]:
    """The Hugging Face configs of a model, or of one inside it, that holds all of these modules."""
    paths = list(paths)
    found: dict[int, Any] = {}
    for path, module in model.named_modules():
        config: Any = getattr(module, "config", None)
        is_around = not path or all(one.startswith(f"{path}.") for one in paths)
        if is_around and hasattr(config, "to_dict"):
            found[id(config)] = config
    return list(found.values())


def scheme_entry(plan: ConversionPlan) -> dict[str, Any]:
    """The scheme and the depth of its scales, as a config stores them."""
    return {
        "format": 1,
        "scheme": plan.scheme.name,
        "rule": plan.scheme.rule,
        **dataclasses.asdict(plan.depth),
        "form": plan.form,
    }


@torch.no_grad()
def _carry_over(
    model: nn.Module, plan: ConversionPlan, optimizers: Sequence[Optimizer], old: dict[str, nn.Parameter]
) -> None:
    for change in plan.changes:
        for name in change.parameters if change.factor != 1.0 else ():
            for optimizer in optimizers:
                rescale_state(optimizer, old[name], change.factor)
    repoint(optimizers, old, dict(model.named_parameters()), origins={new: name for name, new in plan.names.items()})
