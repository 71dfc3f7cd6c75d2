"""What a run came to, in words: for failures that no rule explains, and for runs that tell too little."""

from __future__ import annotations

from kilolayer.diagnosis.examined import FEW_STEPS, Examined

FADED = 0.01
"""Learning rate halfway through a run, in parts of its first, below which the rest of the run could not learn."""


def describe_failure(found: Examined) -> str | None:
    """How a run failed, where no rule says why; ``None`` for one that did not fail, or was too short to tell."""
    said = _failure(found)
    if said is None:
        return None
    why = _unmoved(found)
    return f"{said}, and no rule explains it." if why is None else f"{said}: {why}."


def _unmoved(found: Examined) -> str | None:
    """Why weights stay where they are, whatever the set-up is worth: no rule's business, and plain to see."""
    if found.run is not None and found.run.get("num_optimizer_steps") == 0:
        return "the optimizer took no step (train_step has to call its step)"
    _, rates = found.recording.series("run", "run", "lr")
    half = rates[: len(rates) // 2 + 1]
    if found.outcome == "stuck" and len(half) > 1 and 0 <= half[-1] < FADED * half[0]:
        return f"the schedule takes the learning rate from {half[0]:.2g} to {half[-1]:.1g} within {len(half) - 1} steps"
    return None


def describe_doubt(found: Examined) -> str | None:
    """Why a run in which nothing stands out shows less than one that learns; ``None`` for one that learns."""
    if found.outcome == "slow":
        return f"The loss falls from {found.start_loss:.3g} to {found.final_loss:.3g} only."
    if found.outcome == "unfinished" and found.is_warming_up:
        return f"After {_steps(found)} the learning rate is still so low that weights hardly move."
    if found.outcome == "unfinished":
        return f"The loss was still falling when the run ended, from {found.start_loss:.3g} to {found.final_loss:.3g}."
    if found.outcome == "stuck" and _is_too_short(found):
        return f"The loss stays at {found.final_loss:.3g}, and {_steps(found)} cannot say more."
    return None


def _failure(found: Examined) -> str | None:
    if found.outcome == "non-finite":
        return f"The loss is not finite at step {found.nonfinite_step}"
    if found.outcome == "diverged":
        return f"The loss rises from {found.start_loss:.3g} to {found.final_loss:.3g}"
    if found.outcome != "stuck" or _is_too_short(found):
        return None
    best = found.baseline
    beside = "" if best is None else f", where the best answer that does not look at the input has {best:.3g}"
    return f"The loss starts at {found.start_loss:.3g} and stays at {found.final_loss:.3g}{beside}"


def _steps(found: Examined) -> str:
    return f"{found.run_steps} steps" if found.run_steps != 1 else "a single step"


def _is_too_short(found: Examined) -> bool:
    return found.run_steps < FEW_STEPS
