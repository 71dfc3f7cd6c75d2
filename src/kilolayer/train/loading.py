"""The model of a run, from its newest complete checkpoint."""

from __future__ import annotations

from pathlib import Path

import torch

from kilolayer.nn import CausalLM, Seq2Seq
from kilolayer.train.checkpoints import complete_checkpoints, load_checkpoint
from kilolayer.train.model import build_model
from kilolayer.train.recipe import Recipe
from kilolayer.train.run_folder import CHECKPOINTS, VOCABULARY, load_run_recipe, read_json
from kilolayer.train.sampler import Sampler
from kilolayer.train.subwords import load_tokenizer
from kilolayer.train.translator import Translator
from kilolayer.train.vocabulary import load_vocabulary


def load_sampler(folder: str | Path) -> Sampler:
    """What writes text, from a run of a language model, finished or under way.

    Raises:
        ValueError: no run, one of translation, or one without a checkpoint.
    """
    folder = Path(folder)
    recipe = _load_recipe(folder, "language", "kilolayer translate")
    vocabulary = load_vocabulary(folder / VOCABULARY)
    model = _load_model(folder, recipe, vocabulary.size)
    assert isinstance(model, CausalLM)
    return Sampler(model, vocabulary, context=recipe.length)


def load_translator(folder: str | Path) -> Translator:
    """What translates, from a run of translation, finished or under way.

    Raises:
        ValueError: no run, one of a language model, or one without a checkpoint.
    """
    folder = Path(folder)
    recipe = _load_recipe(folder, "translation", "kilolayer sample")
    tokenizer = load_tokenizer(read_json(folder / VOCABULARY, needs=("tokenizer",))["tokenizer"])
    model = _load_model(folder, recipe, tokenizer.get_vocab_size())
    assert isinstance(model, Seq2Seq)
    return Translator(model, tokenizer, max_length=recipe.length)


def _load_recipe(folder: Path, task: str, other_command: str) -> Recipe:
    recipe, _ = load_run_recipe(folder)
    if recipe.task != task:
        raise ValueError(f"{folder} holds a run of {recipe.task}, not of {task}; use {other_command}")
    return recipe


def _load_model(folder: Path, recipe: Recipe, vocab_size: int) -> CausalLM | Seq2Seq:
    found = complete_checkpoints(folder / CHECKPOINTS)
    if not found:
        raise ValueError(f"{folder} has no complete checkpoint yet; train it further")
    tensors = load_checkpoint(found[-1], recipe).tensors
    with torch.random.fork_rng():
        model = build_model(recipe, vocab_size)
    model.load_state_dict(tensors["model"] | tensors.get("average", {}))
    return model.eval()
