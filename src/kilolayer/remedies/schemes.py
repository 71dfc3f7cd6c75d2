"""Remedies that give a model another residual scheme, through :mod:`kilolayer.convert`."""

from __future__ import annotations

from typing import Any

from kilolayer.convert import Refusal, apply_conversion, plan_conversion
from kilolayer.diagnosis.examined import Examined
from kilolayer.diagnosis.finding import Finding
from kilolayer.remedies.remedy import Edited, SetupLike, Unsuitable


def positional(setup: SetupLike) -> Any:
    """The batch's inputs as conversions take them: a tuple of positional or a dictionary of keyword inputs."""
    inputs, _ = setup.parts(setup.batch)
    return inputs if isinstance(inputs, (tuple, dict)) else tuple(inputs) if isinstance(inputs, list) else (inputs,)


def _convert(setup: SetupLike, scheme: str) -> Edited:
    try:
        plan = plan_conversion(setup.model, scheme, inputs=positional(setup), fresh=True)
        apply_conversion(setup.model, plan, optimizer=setup.optimizer)
    except Refusal as refusal:
        raise Unsuitable(str(refusal)) from refusal
    return Edited(setup, f"{len(plan.changes)} branches to {plan.scheme_name}, drawn anew")


def to_pre_ln(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """Pre-LN with a final norm, drawn anew."""
    return _convert(setup, "pre-ln")


def to_deepnorm(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """DeepNorm with this depth's alpha and beta, drawn anew."""
    return _convert(setup, "deepnorm")


def pre_ln_patch(finding: Finding, found: Examined) -> str:
    """As code."""
    return (
        "nn.TransformerEncoderLayer(..., norm_first=True)  # in your own block: x = x + branch(norm(x))\n"
        "self.final_norm = nn.LayerNorm(width)  # and in forward, behind the last block: h = self.final_norm(h)"
    )


def deepnorm_patch(finding: Finding, found: Examined) -> str:
    """As code."""
    return (
        "plan = kilolayer.plan_conversion(model, scheme='deepnorm', inputs=(inputs,), fresh=True)\n"
        "kilolayer.apply_conversion(model, plan)  # before the optimizer is built"
    )
