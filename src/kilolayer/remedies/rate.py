"""Remedies of the optimizer: learning rate, warm-up, clipping, weight decay, and what it trains."""

from __future__ import annotations

import math
from typing import Any

from kilolayer.diagnosis.examined import Examined
from kilolayer.diagnosis.finding import Finding
from kilolayer.remedies.optimizers import (
    clip,
    clip_anew,
    each_group,
    forget_gradients_after_step,
    scale_lr,
    usual_norm,
    warm_up,
)
from kilolayer.remedies.remedy import Edited, SetupLike, Unsuitable, optimizer_of

LOWER, HIGHER = 0.1, 10.0
TARGET_UPDATE = 5e-3
"""Update ratio at step 0 that a learning rate is moved to where no other rate was tried; healthy nets have 5e-3 to
1e-2 there."""

WARM_UP_STEPS = 50
MAX_NORM = 1.0
SGD_DECAY, ADAM_DECAY = 5e-4, 0.01
"""Weight decays in common use: of He et al. 2015 for SGD, torch's default for AdamW."""


# ---------------------------------------------------------------------- learning rate
def lr_factor(finding: Finding, found: Examined) -> float:
    """The factor between the learning rate and one that should work: the best that was tried, else by the update."""
    tried = found.better_rate(lower=finding.cause != "lr-too-low")
    return factor_by_update(finding, found) if tried is None else tried[0]


def factor_by_update(finding: Finding, found: Examined) -> float:
    """The power of ten that brings the update ratio of step 0 to where healthy networks have it."""
    largest = max(found.update_ratios.values(), default=0.0)
    if finding.cause == "lr-too-low":
        wanted = TARGET_UPDATE / largest if largest > 0 else HIGHER
        return 10.0 ** round(math.log10(min(max(wanted, HIGHER), 1e6)))
    ratio = found.update_ratio or 0.0
    wanted = TARGET_UPDATE / ratio if ratio > 0 else LOWER
    return 10.0 ** round(math.log10(min(max(wanted, 1e-4), LOWER)))


def change_lr(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """The learning rate that was tried best, or that the update ratio asks for."""
    before, after = scale_lr(setup, lr_factor(finding, found))
    return Edited(setup, f"learning rate {before:g} -> {after:g}")


def lr_patch(finding: Finding, found: Examined) -> str:
    """As code."""
    lr = found.lr
    wanted = "0.1 times what it is" if lr is None else f"{lr * lr_factor(finding, found):g}"
    return f"for group in optimizer.param_groups:\n    group['lr'] = {wanted}  # or lr={wanted} where it is built"


def fit_lr(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """The rate by the update ratio, where another one looked best over the few steps it was tried."""
    factor = factor_by_update(finding, found)
    if factor == lr_factor(finding, found):
        raise Unsuitable("the best rate that was tried is the one that the update ratio asks for")
    before, after = scale_lr(setup, factor)
    return Edited(setup, f"learning rate {before:g} -> {after:g}")


def fit_lr_patch(finding: Finding, found: Examined) -> str:
    """As code."""
    lr = found.lr
    wanted = "..." if lr is None else f"{lr * factor_by_update(finding, found):g}"
    return f"for group in optimizer.param_groups:\n    group['lr'] = {wanted}  # or lr={wanted} where it is built"


def warm_up_lr(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """A learning rate that grows linearly over the first steps."""
    warm_up(setup, WARM_UP_STEPS)
    return Edited(setup, f"learning rate grown over the first {WARM_UP_STEPS} steps")


def warm_up_patch(finding: Finding, found: Examined) -> str:
    """As code."""
    return (
        "scheduler = torch.optim.lr_scheduler.LambdaLR(\n"
        f"    optimizer, lambda step: min(1.0, (step + 1) / {WARM_UP_STEPS})\n)\n"
        "# in the loop, behind optimizer.step():\nscheduler.step()"
    )


# ---------------------------------------------------------------------- gradients
def clip_gradients(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """Gradients clipped to norm 1."""
    clip(setup, MAX_NORM)
    return Edited(setup, f"gradients clipped to norm {MAX_NORM:g}")


def clip_patch(finding: Finding, found: Examined) -> str:
    """As code."""
    return (
        "# in the loop, between loss.backward() and optimizer.step():\n"
        f"torch.nn.utils.clip_grad_norm_(model.parameters(), {MAX_NORM})"
    )


def _own_norm(found: Examined) -> float:
    return max(MAX_NORM, usual_norm((found.run or {}).get("unclipped_grad_norm", ())))


def unclip_gradients(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """Gradients clipped to their usual norm, whatever the user's loop makes of them."""
    if finding.measured == 0:
        raise Unsuitable("the gradient is dropped before the optimizer steps, not clipped")
    norm = _own_norm(found)
    clip_anew(setup, norm)
    return Edited(setup, f"gradients clipped to norm {norm:.3g} instead")


def unclip_patch(finding: Finding, found: Examined) -> str:
    """As code."""
    if finding.measured == 0:
        return "# in the loop, in this order:\noptimizer.zero_grad()\nloss.backward()\noptimizer.step()"
    return f"torch.nn.utils.clip_grad_norm_(model.parameters(), {_own_norm(found):.3g})"


def insert_zero_grad(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """Gradients dropped behind every step."""
    forget_gradients_after_step(setup)
    return Edited(setup, "gradients dropped behind every step")


def zero_grad_patch(finding: Finding, found: Examined) -> str:
    """As code."""
    return "# in the loop, before loss.backward():\noptimizer.zero_grad()"


# ---------------------------------------------------------------------- weight decay
def _decay(setup: SetupLike) -> float:
    return ADAM_DECAY if "adamw" in type(optimizer_of(setup)).__name__.lower() else SGD_DECAY


def lower_weight_decay(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """A weight decay in common use."""
    decay = _decay(setup)
    before = max(group.get("weight_decay") or 0.0 for group in optimizer_of(setup).param_groups)
    if before <= decay:
        raise Unsuitable(f"the weight decay is {before:g} already")

    def change(group: dict[str, Any]) -> None:
        group["weight_decay"] = min(group.get("weight_decay") or 0.0, decay)

    each_group(setup, change)
    return Edited(setup, f"weight decay {before:g} -> {decay:g}")


def weight_decay_patch(finding: Finding, found: Examined) -> str:
    """As code."""
    name = str(found.facts["optimizer"].get("name", ""))
    decay = ADAM_DECAY if "adamw" in name.lower() else SGD_DECAY
    return f"for group in optimizer.param_groups:\n    group['weight_decay'] = {decay:g}  # or where it is built"


def drop_weight_decay(setup: SetupLike, finding: Finding, found: Examined) -> Edited:
    """No weight decay."""
    each_group(setup, lambda group: group.update(weight_decay=0.0))
    return Edited(setup, "no weight decay")


def drop_weight_decay_patch(finding: Finding, found: Examined) -> str:
    """As code."""
    return "for group in optimizer.param_groups:\n    group['weight_decay'] = 0.0"
