"""Training loops."""

from kilolayer.train.loop import run_steps, warmup_factor

__all__ = ["run_steps", "warmup_factor"]
