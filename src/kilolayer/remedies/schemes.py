"""Remedies that give a model another residual scheme, through :mod:`kilolayer.convert`."""

from __future__ import annotations

from kilolayer.convert import Refusal, apply_conversion, plan_conversion
from kilolayer.diagnosis.examined import Examined
from kilolayer.diagnosis.finding import Finding
from kilolayer.remedies.remedy import Edited, SetupLike, Unsuitable, run_quietly
from kilolayer.structure.outer_calls import OuterCall, main_call


def call_of(setup: SetupLike) -> OuterCall:
    """How the loss calls the model: the module, with its inputs as conversions take them.

    A loss of the user's own may call the model with anything, or only parts of it; then the largest part counts.

    Raises:
        Unsuitable: no module is called.
    """
    if setup.compute_loss is not None:
        call = main_call(setup.model, lambda: run_quietly(setup))
        if call is None:
            raise Unsuitable("compute_loss calls no module of the model")
        return call
    inputs, _ = setup.parts(setup.batch)
    if isinstance(inputs, dict):
        return OuterCall(setup.model, (), inputs)
    return OuterCall(setup.model, tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,), {})


def _convert(setup: SetupLike, scheme: str) -> Edited:
    call = call_of(setup)
    try:
        plan = plan_conversion(call.module, scheme, inputs=call.inputs, fresh=True)
        apply_conversion(call.module, plan, optimizer=setup.optimizer)
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
