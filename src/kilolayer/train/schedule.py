"""Learning rates over the steps: linear warm-up, then cosine, inverse square root, or constant."""

from __future__ import annotations

import math

from kilolayer.train.loop import warmup_factor
from kilolayer.train.recipe import Recipe


def lr_factor(recipe: Recipe, step: int) -> float:
    """What a step's rate is of ``recipe.lr``.

    With w warm-up steps, T steps and the final ratio r: ``(s + 1)/w`` for s < w; then 1 (``constant``),
    ``sqrt(w / s)`` (``inverse-sqrt``, w at least 1), or ``r + (1 - r) (1 + cos(pi (s - w)/(T - w))) / 2``.

    Examples:
        >>> from kilolayer.train.recipes import language
        >>> recipe = language(data="a.txt", steps=100, warmup_steps=10, final_lr_ratio=0.1)
        >>> [round(lr_factor(recipe, step), 3) for step in (0, 9, 10, 55, 100)]
        [0.1, 1.0, 1.0, 0.55, 0.1]

    Reference: Vaswani et al. 2017, arXiv:1706.03762, eq. 3; Loshchilov and Hutter 2017, arXiv:1608.03983, eq. 5.
    """
    if step < recipe.warmup_steps:
        return warmup_factor(step, recipe.warmup_steps)
    if recipe.schedule == "constant":
        return 1.0
    if recipe.schedule == "inverse-sqrt":
        start = max(recipe.warmup_steps, 1)
        return math.sqrt(start / max(step, start))
    done = min(1.0, (step - recipe.warmup_steps) / max(recipe.steps - recipe.warmup_steps, 1))
    low = recipe.final_lr_ratio
    return low + (1 - low) * (1 + math.cos(math.pi * done)) / 2
