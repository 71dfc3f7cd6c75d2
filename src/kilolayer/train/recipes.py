"""Recipes by name, or from a user's file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kilolayer.schemes.suggest import unknown_name
from kilolayer.structure.loading import load_function
from kilolayer.train.recipe import Recipe


def language(**changes: Any) -> Recipe:
    """A character language model of 12 layers, under DeepNorm: minutes on a laptop for a megabyte of text.

    Args:
        changes: fields of :class:`Recipe`; ``data``, a file of UTF-8 text, is wanted.

    Examples:
        >>> language(data="input.txt", steps=500).decoder_layers
        12
    """
    settings = {"task": "language", "data": "", "lr": 2e-3, "steps": 3000, "batch_size": 8} | changes
    return Recipe.from_dict(settings)


def translation(**changes: Any) -> Recipe:
    """A translator of 6 + 6 layers with sub-words that both languages share, under DeepNorm.

    Args:
        changes: fields of :class:`Recipe`; ``data``, a file of sentence pairs, is wanted.

    Examples:
        >>> translation(data="deu-eng.zip", scheme="pre-ln").encoder_layers
        6
    """
    settings: dict[str, Any] = {
        "task": "translation",
        "data": "",
        "tokens": "bpe",
        "vocab_size": 4000,
        "length": 32,
        "encoder_layers": 6,
        "decoder_layers": 6,
        "lr": 1e-3,
        "warmup_steps": 400,
        "steps": 4000,
        "batch_size": 96,
        "dropout": 0.0,
        "label_smoothing": 0.1,
        "eval_every": 1000,
        "save_every": 500,
    }
    return _with_sub_words(Recipe.from_dict(settings | changes))


def _with_sub_words(recipe: Recipe) -> Recipe:
    if recipe.task == "translation" and recipe.tokens != "bpe":
        raise ValueError(f"translation has sub-words, got tokens={recipe.tokens!r}; use bpe, or leave tokens out")
    return recipe


RECIPES: tuple[Callable[..., Recipe], ...] = (language, translation)


def load_recipe(name: str, changes: dict[str, Any]) -> Recipe:
    """The recipe of this name, or what ``FILE.py:FUNCTION`` returns, with some fields changed.

    Args:
        name: ``"language"``, ``"translation"`` or ``"FILE.py:FUNCTION"``.
        changes: fields of the recipe; ``layers`` stands for the depth of each stack that it has.

    Raises:
        ValueError: no such recipe or function, something else returned, or no data.
        FileNotFoundError: no such file.
    """
    base = _base_recipe(name)
    changes = dict(changes)
    if (layers := changes.pop("layers", None)) is not None:
        stacks = ("encoder_layers", "decoder_layers") if base.encoder_layers else ("decoder_layers",)
        changes = dict.fromkeys(stacks, layers) | changes
    recipe = Recipe.from_dict(base.to_dict() | changes)
    if "tokens" in changes:
        _with_sub_words(recipe)
    if not recipe.data:
        kind = "UTF-8 text" if recipe.task == "language" else "sentence pairs"
        raise ValueError(
            f"recipe {name!r} needs data; name a file of {kind}: --data FILE, or data in a recipe of your own"
        )
    return recipe


def _base_recipe(name: str) -> Recipe:
    if ":" in name:
        found = load_function(name)()
        if not isinstance(found, Recipe):
            raise ValueError(f"{name} must return a kilolayer.train.Recipe, got {type(found).__name__}")
        return found
    known = {one.__name__: one for one in RECIPES}
    if name not in known:
        raise unknown_name("recipe", name, [*known, "FILE.py:FUNCTION"])
    return known[name]()
