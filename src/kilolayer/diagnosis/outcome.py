"""What a run came to, in words: for failures that no rule explains, and for runs that tell too little."""

from __future__ import annotations

from kilolayer.diagnosis.examined import FEW_STEPS, Examined


def describe_failure(found: Examined) -> str | None:
    """How a run failed, where no rule says why; ``None`` for one that did not fail, or was too short to tell."""
    said = _failure(found)
    return None if said is None else f"{said}, and no rule explains it."


def describe_doubt(found: Examined) -> str | None:
    """Why a run in which nothing stands out shows less than one that learns; ``None`` for one that learns."""
    if found.outcome == "slow":
        return f"The loss falls from {found.start_loss:.3g} to {found.final_loss:.3g} only."
    if found.outcome == "unfinished" and found.is_warming_up:
        return f"After {found.run_steps} steps the learning rate is still so low that weights hardly move."
    if found.outcome == "unfinished":
        return f"The loss was still falling when the run ended, from {found.start_loss:.3g} to {found.final_loss:.3g}."
    if found.outcome == "stuck" and _is_too_short(found):
        return f"The loss stays at {found.final_loss:.3g}, and {found.run_steps} steps are too few to say more."
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


def _is_too_short(found: Examined) -> bool:
    return found.run_steps < FEW_STEPS
