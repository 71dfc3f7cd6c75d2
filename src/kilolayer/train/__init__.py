"""Training: recipes for language and translation, carried out step by step, watched, saved and continued."""

from kilolayer.train.loop import run_steps, warmup_factor
from kilolayer.train.recipe import Recipe
from kilolayer.train.recipes import RECIPES, language, translation
from kilolayer.train.result import Result
from kilolayer.train.run import train
from kilolayer.train.segments import load_recording
from kilolayer.train.width_transfer import plan_width_transfer

__all__ = [
    "RECIPES",
    "Recipe",
    "Result",
    "language",
    "load_recording",
    "plan_width_transfer",
    "run_steps",
    "train",
    "translation",
    "warmup_factor",
]
